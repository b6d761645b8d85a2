"""Has the served model ready before the first start: converted or downloaded, and checked."""

import sys

from cli.progress import conversion_progress
from core.errors import AppError
from core.settings import load_settings
from workers.engine.loading.source import model_folder


def main() -> int:
    try:
        with conversion_progress() as progress:
            folder = model_folder(load_settings(), progress)
    except AppError as error:
        print(error.message)
        return 1
    print(f"      {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
