"""The real client against a small hub on this machine; in a process of its own, since it reads its address once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.hub import fake_hub
from tests.tiny_models import tiny_model_folder

ROOT = Path(__file__).parents[4]
REPO = "acme/tiny-llama"
CODE = """
import sys
from core.errors import AppError
from core.settings import load_settings
from workers.engine.loading.source import model_folder
steps = []
try:
    print(model_folder(load_settings(model=sys.argv[1]), lambda what, fraction: steps.append((what, fraction))))
except AppError as error:
    print(type(error).__name__, error.message)
print(steps[-1] if steps else None)
"""


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_model_folder(tmp_path_factory.mktemp("remote"), "llama", seed=0)
    (folder / "pytorch_model.bin").write_bytes(b"never to be fetched")
    (folder / "README.md").write_text("nor this")
    return folder


def ask(endpoint: str, cache: Path, repo: str = REPO) -> tuple[str, str]:
    """What a start would print: the folder or the error, and the last step of progress."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": endpoint,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_ETAG_TIMEOUT": "2",
    }
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", CODE, repo],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    answer, step = done.stdout.strip().splitlines()
    return answer, step


def test_a_model_is_fetched_once_and_then_served_without_the_hub(remote: Path, tmp_path: Path) -> None:
    with fake_hub(REPO, remote) as (endpoint, fetched):
        answer, step = ask(endpoint, tmp_path)
        assert step == "('Downloading acme/tiny-llama', 1.0)"
        assert sorted(fetched) == sorted(
            path.name for path in remote.iterdir() if path.suffix in {".json", ".jinja", ".safetensors"}
        )
    folder = Path(answer)
    assert (folder / "model.safetensors").read_bytes() == (remote / "model.safetensors").read_bytes()
    assert ask(endpoint, tmp_path)[0] == str(folder)  # the hub is gone


def test_one_that_cannot_be_served_is_not_downloaded(remote: Path, tmp_path: Path) -> None:
    folder = tmp_path / "unsupported"
    folder.mkdir()
    config = json.loads((remote / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_local_experts": 8}))
    (folder / "model.safetensors").write_bytes(b"large")
    with fake_hub(REPO, folder) as (endpoint, fetched):
        answer, _ = ask(endpoint, tmp_path / "cache")
    assert answer.startswith(
        "ModelUnsupported This model (llama) cannot be served: it has a mixture of experts"
    )
    assert fetched == ["config.json"]


def test_an_unknown_model_is_named(remote: Path, tmp_path: Path) -> None:
    with fake_hub(REPO, remote) as (endpoint, _):
        answer, _ = ask(endpoint, tmp_path, "acme/other")
    assert answer.startswith("ModelBroken The hub has no model acme/other")


def test_without_a_hub_the_remedy_is_named(tmp_path: Path) -> None:
    answer, _ = ask("http://127.0.0.1:9", tmp_path)
    assert answer.startswith(
        "ModelBroken acme/tiny-llama is not on this machine and the hub cannot be reached"
    )
