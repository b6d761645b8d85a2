"""A contestant's process: one JSON line in for each call, one JSON line out.

Started as `python -m bench.child NAME [FOLDER]`; the folder is for what is to outlive the process. Whatever a library writes to stdout goes to stderr: stdout is the wire.
"""

import gc
import importlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from bench.contestant import Asking, Contestant, FanningOut, Keeping, Storing, Streaming
from bench.roster import ROSTER
from bench.workload import Document, Prompt

_WHO_DOES: dict[str, type] = {
    "keep": Keeping,
    "ask": Asking,
    "fan_out": FanningOut,
    "keep_too": Storing,
    "forget": Storing,
    "held": Storing,
    "keep_beside": Streaming,
}
_TYPES: dict[str, TypeAdapter[Any]] = {
    "document": TypeAdapter(Document),
    "prompt": TypeAdapter(Prompt),
    "prompts": TypeAdapter(list[Prompt]),
}


def main(name: str, *home: str) -> int:
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as wire:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        module, _, factory = ROSTER[name].factory.partition(":")
        gc.disable()  # it would look at thousands of modules again and again while they are imported
        make = getattr(importlib.import_module(module), factory)
        gc.enable()
        contestant: Contestant = make(*map(Path, home))
        try:
            say(wire, asdict(contestant.describe()))
            for line in sys.stdin:
                say(wire, answer(contestant, json.loads(line)))
        finally:
            contestant.close()
    return 0


def say(wire: IO[str], values: dict[str, Any]) -> None:
    wire.write(json.dumps(values) + "\n")
    wire.flush()


def answer(contestant: Contestant, call: dict[str, Any]) -> dict[str, Any]:
    """Call the method of that name with the other values, and give what it says."""
    name = call["call"]
    if not isinstance(contestant, _WHO_DOES.get(name, ())):
        raise ValueError(f"{type(contestant).__name__} does not {name}")  # noqa: TRY004 - whoever calls has asked too much
    arguments = {
        key: _TYPES[key].validate_python(value) if key in _TYPES else value
        for key, value in call.items()
        if key != "call"
    }
    said = getattr(contestant, name)(**arguments)
    return {} if said is None else asdict(said)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
