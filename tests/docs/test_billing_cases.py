"""docs/billing-cases.md lists public cases of wrong bills: each has its own test, which names it, or its reason stands there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "billing-cases.md"
FILES = [
    *(ROOT / "tests" / "billing").glob("test_cases_*.py"),
    *(ROOT / "tests" / "api").glob("test_cases_*.py"),
]
COUNT, MOST_WITHOUT = 37, 3
ROW = re.compile(r"^\| (\d+) \| ([\w.-]+/[\w.-]+#\d+) \|.*\| `(test_\w+)` \|$", re.MULTILINE)


def page() -> tuple[str, str]:
    listed, _, without = PAGE.read_text(encoding="utf-8").partition("| without a test | reason |")
    return listed, without


def cases_in_tests() -> dict[str, str]:
    """The docstring of each test of a case, by its name."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in FILES]
    functions = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {each.name: ast.get_docstring(each) or "" for each in functions if each.name.startswith("test_")}


def test_every_case_has_a_test_of_its_own_or_a_reason() -> None:
    rows, without = ROW.findall(page()[0]), re.findall(r"^\| (\d+) \| .+ \|$", page()[1], re.MULTILINE)
    assert sorted([int(number) for number, _, _ in rows] + [int(number) for number in without]) == [
        *range(1, COUNT + 1)
    ]
    assert len(without) <= MOST_WITHOUT
    names = [name for _, _, name in rows]
    assert len(set(names)) == len(names)


def test_the_table_and_the_tests_agree() -> None:
    listed = {name: reference for _, reference, name in ROW.findall(page()[0])}
    found = cases_in_tests()
    assert listed.keys() == found.keys()
    assert [name for name, reference in listed.items() if reference not in found[name]] == []
