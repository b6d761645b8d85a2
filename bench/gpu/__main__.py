"""`python -m bench.gpu`: checks and times attention backends, prints a table, and one JSON object as the last line.

It ends by itself within its budget, and with 1 where something differs. No settings, no database, nothing to download.
"""

import argparse
import json
import logging
import platform
import sys
from dataclasses import asdict

import torch
import transformers

from bench.gpu.budget import Budget
from bench.gpu.measure import Seen, measure
from bench.gpu.report import lines
from bench.gpu.shapes import PLAN, SHAPES, TINY_PLAN, TINY_SHAPES

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def main() -> int:
    asked = arguments()
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    if asked.device.startswith("cuda") and not torch.cuda.is_available():
        sys.stderr.write("There is no CUDA device here. To see that the program works: --device cpu --tiny\n")
        return 2
    device, dtype = torch.device(asked.device), _DTYPES[asked.dtype]
    shapes, plan = (TINY_SHAPES, TINY_PLAN) if asked.tiny else (SHAPES, PLAN)
    budget = Budget(asked.budget_seconds)
    seen: dict[str, Seen] = {}
    for name, shape in shapes.items():
        seen[name] = measure(shape, plan, device, dtype, budget)
        print("\n".join(lines(name, seen[name])), flush=True)
    is_right = all(each.is_right for each in seen.values()) and asked.tests in {"passed", None}
    facts = {
        "benchmark": "gpu",
        "ok": is_right,
        "complete": not any(each.left_out for each in seen.values()),
        "tests": asked.tests if device.type == "cuda" else "skipped",
        "tiny": asked.tiny,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "dtype": asked.dtype,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "models": {name: asdict(each) for name, each in seen.items()},
    }
    print(json.dumps(facts))
    return 0 if is_right else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16", choices=list(_DTYPES))
    parser.add_argument("--tiny", action="store_true", help="small shapes: shows that it works, anywhere")
    parser.add_argument("--budget-seconds", type=float, default=450.0)
    parser.add_argument("--tests", help="what became of the tests, for the JSON object")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
