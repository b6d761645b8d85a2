"""What the layout promises: our names are ours, heavy parts stay where they belong, files stay small."""

import ast
import importlib.util
import subprocess
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ["api", "bench", "billing", "caching", "cli", "core", "models", "prompting", "workers"]
SOURCES = sorted(
    path for name in [*PACKAGES, "migrations", "scripts"] for path in (ROOT / name).rglob("*.py")
)
TESTS = sorted((ROOT / "tests").rglob("*.py"))
# What proves the books must share nothing with what it proves; the clock asks the database the time, and no table.
OTHER_QUERIES = {
    "billing/checks.py",
    "billing/correction_checks.py",
    "billing/entry_checks.py",
    "billing/recompute.py",
    "billing/spending_checks.py",
    "core/clock.py",
}
QUERIES = {"select", "insert", "update", "delete", "sqlalchemy.select", "session.query"}
# Calls that run what they are given, or read a format that can.
DANGEROUS = {"eval", "exec", "torch.load"}
UNSAFE_FORMATS = {"pickle", "marshal", "shelve", "yaml"}


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def calls(path: Path) -> set[str]:
    """The dotted names of everything that a file calls."""
    return {ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)}


def imports(path: Path) -> set[str]:
    """The dotted names of all modules that a file imports, and of what it takes from them."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.update([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    return names


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("package", PACKAGES)
def test_our_name_resolves_inside_the_checkout(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert [Path(place) for place in spec.submodule_search_locations or []] == [ROOT / package]


def test_no_dependency_ships_a_package_of_our_names() -> None:
    assert set(packages_distributions()) & set(PACKAGES) == set()


@pytest.mark.parametrize("module", ["api.app", "cli.main"])
def test_importing_it_loads_no_torch(module: str) -> None:
    """The import contracts see what is written; this sees what happens."""
    program = (
        f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_nothing_runs_what_it_reads() -> None:
    found = {name_of(path): calls(path) & DANGEROUS | imports(path) & UNSAFE_FORMATS for path in SOURCES}
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.trap("T5")
def test_no_slice_counts_from_the_end_by_a_number_that_may_be_zero() -> None:
    """The last n of something, `x[-n:]`, are all of it where n is 0."""

    def is_risky(begin: ast.expr | None) -> bool:
        """Minus something that is no constant."""
        if not (isinstance(begin, ast.UnaryOp) and isinstance(begin.op, ast.USub)):
            return False
        name = begin.operand
        return not (isinstance(name, ast.Constant) or (isinstance(name, ast.Name) and name.id.isupper()))

    assert is_risky(ast.parse("-n", mode="eval").body)
    found = {
        f"{name_of(path)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Slice) and is_risky(node.lower)
    }
    assert found == set()


def test_no_middleware_hides_a_client_that_hangs_up() -> None:
    """Starlette's base class does, and FastAPI's decorator is made of it."""
    base = {"starlette.middleware.base", "app.middleware"}
    assert [name_of(path) for path in SOURCES if base & (imports(path) | calls(path))] == []


def test_queries_live_beside_their_tables() -> None:
    elsewhere = [
        path for path in SOURCES if path.parent != ROOT / "models" and "migrations" not in path.parts
    ]
    found = {name_of(path) for path in elsewhere if calls(path) & QUERIES}
    assert found <= OTHER_QUERIES


def test_migrations_import_only_tables_and_core() -> None:
    ours = {name.partition(".")[0] for path in (ROOT / "migrations").rglob("*.py") for name in imports(path)}
    assert ours & set(PACKAGES) <= {"models", "core"}


def test_files_stay_small() -> None:
    sizes = {name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES + TESTS}
    assert {
        name: size for name, size in sizes.items() if size > (600 if name.startswith("tests/") else 500)
    } == {}


def test_every_package_has_its_init_and_tests_have_none() -> None:
    folders = {path.parent for path in SOURCES if path.relative_to(ROOT).parts[0] in PACKAGES}
    assert [name_of(folder) for folder in folders if not (folder / "__init__.py").exists()] == []
    assert [name_of(path) for path in TESTS if path.name == "__init__.py"] == []
