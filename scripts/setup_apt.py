"""Installs what Debian and Ubuntu keep outside Python, with apt-get. Standard library only."""

import os
import shutil
import subprocess
from collections.abc import Sequence


class StepFailed(Exception):  # noqa: N818 - reads as what happened
    """A step could not be done; the message says what to do about it."""


def apt_install(lacking: str, packages: Sequence[str]) -> None:
    """Install the first package that there is; `lacking` says what is wrong without it."""
    if shutil.which("apt-get") is None:
        message = f"{lacking} and there is no apt-get: install your system's package for it (Debian: {packages[-1]})."
        raise StepFailed(message)
    as_root = [] if os.geteuid() == 0 else ["sudo"]
    if as_root and shutil.which("sudo") is None:
        message = f"{lacking}. Run as root: apt-get install {packages[0]}"
        raise StepFailed(message)
    print(f"      {lacking}: apt-get installs {packages[0]}", flush=True)
    quiet = ["-qq", "-o=Dpkg::Use-Pty=0"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run([*as_root, "apt-get", *quiet, "update"], check=False, env=environment)
    for name in packages:
        installed = subprocess.run(
            [*as_root, "apt-get", *quiet, "install", "-y", name], check=False, env=environment
        )
        if installed.returncode == 0:
            return
    message = f"apt-get could not install {packages[0]}; see the lines above."
    raise StepFailed(message)
