"""Writes docs/conformance.md: each item of the checklist, and the tests that prove it.

.venv/bin/python -m tests.conformance.listing
"""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.sdks import SDKS

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "conformance.md"
# A test that takes one of these runs once for each client, as pytest makes it so in conftest.py.
EACH_CLIENT = {"driver", "client", "built_in", "scripted", "slow"}
EACH_VERSION = "sdk"
_NAME = re.compile(r"test_(\d\d(?:_\d\d)*)_")

_INTRODUCTION = """\
# Conformance

What a server must do for Gemini's stock clients to work, and the tests that prove it: `make conformance` runs them against whole servers, in float32. "Each client" are
{clients}; "each version" is each version of the packages; "HTTP" is plain HTTP, where bytes, headers or malformed bodies matter. Batch jobs are not part of it yet. This page is
generated: `.venv/bin/python -m tests.conformance.listing`.

"""


@dataclass(frozen=True, slots=True)
class Proof:
    test: str
    file: str
    of: str


def main() -> None:
    DOCUMENT.write_text(document(), encoding="utf-8")
    print(f"{DOCUMENT.name}: {sum(map(len, proofs().values()))} proofs")  # noqa: T201 -- a program's answer


def document() -> str:
    checklist, proved = read_checklist(), proofs()
    text = _INTRODUCTION.format(clients=clients())
    for section in checklist["sections"]:
        text += f"## {section['title']}\n\n| | what holds | proved by |\n|---|---|---|\n"
        for number, sentence in section["items"].items():
            proof = "<br>".join(_written(each) for each in proved[int(number)])
            remarks = [checklist[kind].get(number) for kind in ("left", "notes")]
            cell = "<br>".join(filter(None, [proof, *(remark and f"*{remark}*" for remark in remarks)]))
            text += f"| {number} | {sentence} | {cell} |\n"
        text += "\n"
    return text.rstrip() + "\n"


def read_checklist() -> dict[str, Any]:
    return tomllib.loads((HERE / "checklist.toml").read_text(encoding="utf-8"))


def clients() -> str:
    versions: dict[str, list[str]] = defaultdict(list)
    for sdk in SDKS:
        versions[sdk.package].append(sdk.version)
    named = [f"{package} {', '.join(each)}" for package, each in versions.items()]
    return f"{named[0]} (each sync and aio), {named[1]}, and plain HTTP"


def proofs() -> dict[int, list[Proof]]:
    """The tests of each item."""
    found: dict[int, list[Proof]] = defaultdict(list)
    for path in sorted(HERE.glob("test_*.py")):
        for function in _functions(path):
            match = _NAME.match(function.name)
            arguments = {argument.arg for argument in function.args.args}
            for number in match[1].split("_") if match else ():
                found[int(number)].append(Proof(function.name, path.name, _of(arguments)))
    return found


def _of(arguments: set[str]) -> str:
    if arguments & EACH_CLIENT:
        return "each client"
    return "each version" if EACH_VERSION in arguments else "HTTP"


def _functions(path: Path) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield node


def _written(proof: Proof) -> str:
    place = f"../tests/conformance/{proof.file}"
    return f"[`{proof.test}`]({place}), {proof.of}"


if __name__ == "__main__":
    main()
