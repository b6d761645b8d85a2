"""docs/decisions/0022 lists known traps of other engines: each is marked by a test here, or its reason stands there."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "docs" / "decisions" / "0022-known-traps.md"
MOST_WITHOUT = 6


def test_every_trap_has_a_test_or_a_reason() -> None:
    listed, without, marked = listed_traps(), without_test(), marked_traps().keys()
    assert listed == [f"T{number}" for number in range(1, len(listed) + 1)]
    assert len(listed) >= 45
    assert set(listed) - marked - without == set()
    assert marked <= set(listed)


def test_nothing_is_excused_that_has_a_test() -> None:
    without = without_test()
    assert without <= set(listed_traps())
    assert len(without) <= MOST_WITHOUT
    assert {trap: tests for trap, tests in marked_traps().items() if trap in without} == {}


def listed_traps() -> list[str]:
    return re.findall(r"^\| (T\d+) \|", _tables()[0], re.MULTILINE)


def without_test() -> set[str]:
    return set(re.findall(r"^\| (T\d+) \|", _tables()[1], re.MULTILINE))


def marked_traps() -> dict[str, list[str]]:
    """The tests of each trap: marked functions, and the tests of marked classes, in files that pytest collects."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and _is_collected(node):
                for trap in _marks(node):
                    found[trap].append(f"{path.name}::{node.name}")
    return found


def _tables() -> tuple[str, str]:
    listed, _, without = RECORD.read_text(encoding="utf-8").partition("| without a test |")
    return listed, without


def _is_collected(node: ast.FunctionDef | ast.ClassDef) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name.startswith("test_")
    return node.name.startswith("Test") and any(
        isinstance(each, ast.FunctionDef) and _is_collected(each) for each in node.body
    )


def _marks(node: ast.FunctionDef | ast.ClassDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.trap":
            (trap,) = decorator.args
            yield ast.literal_eval(trap)
