"""The model on offer: its names, limits and fingerprint, and that every gate is asked before it is offered."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from core.errors import ModelBroken, ModelUnsupported
from core.settings import Settings, load_settings
from prompting.format import PromptFormat
from tests.tiny_models import tiny_model_folder
from workers.engine.loading.digests import DigestCache
from workers.engine.loading.fingerprint import fingerprint
from workers.engine.loading.progress import silent
from workers.engine.loading.serve import load_served_model


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("model"), "qwen3", seed=0, context_tokens=512)


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def settings(folder: Path, **more: Any) -> Settings:
    return load_settings(model=str(folder), model_cache_dir=folder.parent / "cache", **more)


def test_names_limits_and_fingerprint(folder: Path) -> None:
    given = settings(folder, model_name="mine", model_aliases="gemini-2.5-flash, other", min_cache_tokens=70)
    found, served = load_served_model(given, silent)
    assert found == folder
    assert (served.name, served.aliases) == ("mine", ("gemini-2.5-flash", "other"))
    assert (served.context_tokens, served.input_token_limit, served.min_cache_tokens) == (512, 511, 70)
    digests = DigestCache(folder.parent / "other.json")
    assert served.fingerprint == fingerprint(folder, PromptFormat.load(folder), digests=digests)


def test_one_that_cannot_be_served_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_local_experts": 8}))
    with pytest.raises(ModelUnsupported, match="a mixture of experts"):
        load_served_model(settings(folder), silent)


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = tiny_model_folder(tmp_path, "llama", seed=0, vocab=49_151)
    with pytest.raises(ModelBroken, match="has 49152 tokens, the model 49151"):
        load_served_model(settings(folder), silent)
