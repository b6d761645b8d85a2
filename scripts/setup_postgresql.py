"""Makes sure that PostgreSQL's programs are there: the tests start a server of their own with them.

Nothing else of it is used. Debian starts a server of its own when it installs them; the tests leave that one alone.
"""

import shutil
import sys
from pathlib import Path

from setup_apt import StepFailed, apt_install

_DEBIANS = Path("/usr/lib/postgresql")  # not on the PATH, a folder for each version


def main() -> int:
    if find_programs() is not None:
        return 0
    try:
        apt_install("the tests need PostgreSQL", ["postgresql"])
    except StepFailed as error:
        print(f"\nThe set-up stopped: {error}")
        return 1
    return 0


def find_programs() -> Path | None:
    """Find the folder of the newest PostgreSQL on this machine; None where there is none."""
    newest = max(_DEBIANS.glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]), default=None)
    found = newest or shutil.which("initdb")
    return None if found is None else Path(found).resolve().parent


if __name__ == "__main__":
    sys.exit(main())
