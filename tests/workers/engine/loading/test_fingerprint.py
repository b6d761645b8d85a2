import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from prompting.format import PromptFormat
from tests.tiny_models import tiny_model_folder
from workers.engine.loading.digests import DigestCache
from workers.engine.loading.fingerprint import fingerprint


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("model"), "llama", seed=0)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def halves(folder: Path) -> tuple[str, str]:
    digests = DigestCache(folder.parent / "digests.json")
    tokens, weights = fingerprint(folder, PromptFormat.load(folder), digests=digests).split(":")
    return tokens, weights


def edit(folder: Path, name: str, change: Callable[[str], str]) -> None:
    text = (folder / name).read_text()
    changed = change(text)
    assert changed != text
    (folder / name).write_text(changed)


def test_is_two_digests(folder: Path) -> None:
    assert [len(half) for half in halves(folder)] == [64, 64]


def test_is_the_same_for_a_copy(original: Path, folder: Path) -> None:
    assert halves(original) == halves(folder)


def test_other_weights_change_the_second_half(folder: Path) -> None:
    before = halves(folder)
    with (folder / "model.safetensors").open("r+b") as stream:
        stream.seek(-1, 2)
        last = stream.read(1)
        stream.seek(-1, 2)
        stream.write(bytes([last[0] ^ 1]))
    after = halves(folder)
    assert (before[0], before[1] != after[1]) == (after[0], True)


def test_another_config_changes_the_second_half(folder: Path) -> None:
    before = halves(folder)
    edit(folder, "config.json", lambda text: text.replace("10000.0", "20000.0"))
    after = halves(folder)
    assert (before[0], before[1] != after[1]) == (after[0], True)


def test_another_template_changes_the_first_half(folder: Path) -> None:
    before = halves(folder)
    edit(folder, "chat_template.jinja", lambda text: text + " ")
    after = halves(folder)
    assert (before[0] != after[0], before[1]) == (True, after[1])


@pytest.mark.parametrize("name", ["transformers_version", "dtype", "_name_or_path"])
def test_who_wrote_the_file_changes_nothing(name: str, folder: Path) -> None:
    before = halves(folder)
    edit(folder, "config.json", lambda text: json.dumps({**json.loads(text), name: "other"}))
    assert halves(folder) == before
