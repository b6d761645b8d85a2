"""Keeps a private PostgreSQL server for as long as its standard input is open, then stops it and removes its folder.

A program of its own: the input ends with the run that needs the server, however that ends, so no server outlives one.
Called with the folder of PostgreSQL's programs and with options of the server, name=value. It imports nothing of ours.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

_RUNS_AS = "postgres"  # where we are root, which PostgreSQL refuses to be
_OPTIONS = ("listen_addresses=", "unix_socket_permissions=0777")


def main(binaries: Path, options: list[str]) -> int:
    # Ctrl-C is for the run that we serve: our input tells us when it has ended.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    folder = Path(tempfile.mkdtemp(prefix="headstart-postgresql-"))
    folder.chmod(0o755)  # the socket is in there
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, _RUNS_AS, _RUNS_AS)
        _run(folder, binaries / "initdb", *_initdb_arguments(binaries))
        settings = " ".join(f"-c {name}='{value}'" for name, _, value in map(_split, [*_OPTIONS, *options]))
        start = ["start", "--wait", "--silent", "--log", f"{folder}/log"]
        _run(folder, binaries / "pg_ctl", *start, "--options", f"-k {folder} {settings}")
        try:
            sys.stdout.write(f"{folder}\n")
            sys.stdout.flush()
            sys.stdin.read()
        finally:
            _run(folder, binaries / "pg_ctl", "stop", "--mode", "immediate", "--silent")
    finally:
        shutil.rmtree(folder)
    return 0


def _split(option: str) -> tuple[str, str, str]:
    return option.partition("=")


def _initdb_arguments(binaries: Path) -> list[str]:
    arguments = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C.UTF-8"]
    version = subprocess.run(  # noqa: S603 - PostgreSQL's
        [binaries / "initdb", "--version"], check=True, capture_output=True, text=True
    )
    if int(version.stdout.split()[2].split(".")[0]) >= 15:
        arguments += ["--locale-provider=icu", "--icu-locale=en-US"]
    return [*arguments, "--no-sync", "--no-instructions"]


def _run(folder: Path, program: Path, *arguments: str) -> None:
    """Run one of PostgreSQL's programs on the data in the folder, as the folder's owner."""
    owner = folder.stat()
    is_root = os.geteuid() == 0
    subprocess.run(  # noqa: S603 - PostgreSQL's
        [program, *arguments],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        env=os.environ | {"PGDATA": str(folder / "data"), "LC_ALL": "C.UTF-8"},
        user=owner.st_uid if is_root else None,
        group=owner.st_gid if is_root else None,
        extra_groups=[] if is_root else None,
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
