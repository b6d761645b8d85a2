"""Has the served model ready before the first start: converted or downloaded, and checked."""

import importlib
import sys

from cli.progress import conversion_progress
from core.errors import AppError
from core.settings import load_settings
from workers.engine.loading.source import model_folder

# What a server imports. The packages were installed uncompiled; importing them now keeps the first start short.
HEAVY = ("cli.serve", "cli.demo.command", "transformers.models.llama.modeling_llama")


def main() -> int:
    try:
        with conversion_progress() as progress:
            folder = model_folder(load_settings(), progress)
            for number, module in enumerate(HEAVY):
                progress("Compiling what a server imports", number / len(HEAVY))
                importlib.import_module(module)
            progress("Compiling what a server imports", 1.0)
    except AppError as error:
        print(error.message)
        return 1
    print(f"      {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
