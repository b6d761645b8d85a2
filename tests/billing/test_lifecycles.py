"""However a cache lives and however the time is cut, it costs what exact fractions say, to the nano: `bench billing`, in small."""

import ast
from collections import Counter
from pathlib import Path

from hypothesis import given, settings, strategies as st

from bench import billing as bench_billing
from bench.billing import history as facts, in_database, in_memory
from bench.billing.history import history
from bench.billing.lives import Life, make_life, numbered_life
from bench.billing.oracle import Oracle
from models.session import Database
from tests.databases import Kind


@st.composite
def lives(draw: st.DrawFn) -> Life:
    return make_life(lambda low, high: draw(st.integers(low, high)))


@settings(max_examples=300, deadline=None)
@given(lives())
def test_any_life(life: Life) -> None:
    assert in_memory.difference(life) is None


def test_ten_thousand_lives() -> None:
    for number in range(10_000):
        assert in_memory.difference(numbered_life("tests", number)) is None, number


def test_lives_as_they_happen_in_each_database(database: Database, kind: Kind) -> None:
    for number in range(25):
        assert in_database.difference(database, numbered_life(kind, number)) is None, number  # others in each


def test_the_oracle_shares_nothing_with_what_it_checks() -> None:
    folder = Path(str(bench_billing.__file__)).parent
    for name in ("oracle", "history", "lives", "months", "entries"):
        tree = ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))
        sources = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        sources += [
            each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names
        ]
        packages = {source.partition(".")[0] for source in sources}
        assert packages & {"billing", "models", "caching", "core", "sqlalchemy"} == set(), name
        assert {source for source in sources if source.startswith("bench")} <= {
            f"bench.billing.{each}" for each in ("entries", "history", "lives", "months")
        }, name


def test_lives_have_everything_that_can_happen() -> None:
    seen: Counter[str] = Counter()
    for number in range(2_000):
        life = numbered_life("tests", number)
        clocks = [step.at for step in life.steps]
        seen["set back"] += clocks != sorted(clocks)
        seen["overrides"] += any(change.project == "own" for change in life.changes)
        seen["ends"] += any(change.until is not None for change in life.changes)
        oracle = Oracle(life)
        for happened in history(life):
            for fact in happened:
                seen[type(fact).__name__] += 1
                oracle.take(fact)
                if isinstance(fact, facts.Used):
                    seen["explicit"] += fact.named > 0
                    seen["implicit"] += fact.implicit > 0
                    seen["duplicates"] += fact.times > 1
        names = oracle.record.items()
        seen["corrections"] += sum(name.startswith("correction") for name, _ in names)
        seen["late"] += sum(each.is_correction and not name.startswith("correction") for name, each in names)
    expected = {"set back", "overrides", "ends", "explicit", "implicit", "duplicates", "corrections", "late"}
    expected |= {kind.__name__ for kind in facts.Fact.__args__}
    assert {what: seen[what] for what in expected if seen[what] < 10} == {}
