"""A contestant's process: one JSON line in for each call, one JSON line out.

Started as `python -m bench.child NAME`. Whatever a library writes to stdout goes to stderr: stdout is the wire.
"""

import importlib
import json
import os
import sys
from dataclasses import asdict
from typing import IO, Any

from pydantic import TypeAdapter

from bench.contestant import Asking, Contestant, FanningOut
from bench.roster import ROSTER
from bench.workload import Document, Prompt


def main(name: str) -> int:
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as wire:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        module, _, factory = ROSTER[name].factory.partition(":")
        contestant: Contestant = getattr(importlib.import_module(module), factory)()
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
    name = call["call"]
    if name == "keep":
        return asdict(contestant.keep(TypeAdapter(Document).validate_python(call["document"])))
    if name == "ask" and isinstance(contestant, Asking):
        prompt = TypeAdapter(Prompt).validate_python(call["prompt"])
        return asdict(contestant.ask(prompt, call["output_tokens"]))
    if name == "fan_out" and isinstance(contestant, FanningOut):
        prompts = TypeAdapter(list[Prompt]).validate_python(call["prompts"])
        return asdict(contestant.fan_out(prompts, call["output_tokens"]))
    raise ValueError(f"{type(contestant).__name__} does not {name}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
