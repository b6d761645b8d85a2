from pathlib import Path

import pytest

from core.errors import ModelBroken, ModelUnsupported
from core.settings import load_settings
from tests.tiny_models import built_in_folder
from workers.engine.loading.source import model_folder, served_name


def test_the_built_in_model_is_the_default() -> None:
    assert model_folder(load_settings()) == built_in_folder()


def test_a_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    assert model_folder(load_settings(model=str(tmp_path / "model"))) == (tmp_path / "model").resolve()
    monkeypatch.chdir(tmp_path)
    assert model_folder(load_settings(model="model")) == (tmp_path / "model").resolve()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert model_folder(load_settings(model="~/model")) == (tmp_path / "model").resolve()


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./model", "no-such-model", "a/b/c", "org/na me", "../up"]
)
def test_what_is_nothing_is_refused_with_what_it_could_be(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelBroken, match=r"neither 'smollm2-135m-instruct', nor a folder, nor a hub id"):
        model_folder(load_settings(model=name))


def test_a_gguf_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelUnsupported, match="only the built-in model is converted"):
        model_folder(load_settings(model=str(tmp_path / "mine.gguf")))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2-135m-instruct", "smollm2-135m-instruct"),
        ("/models/Qwen2.5-0.5B-Instruct/", "qwen2.5-0.5b-instruct"),
        ("Qwen/Qwen3-0.6B", "qwen3-0.6b"),
        ("/models/_my model (1)", "my-model-1"),
        ("/models/漢字", "model"),
        ("/models/" + "x" * 100, "x" * 63),
    ],
)
def test_a_model_is_called_by_the_last_part_of_where_it_lies(model: str, name: str) -> None:
    assert served_name(load_settings(model=model)) == name
    assert load_settings(model_name=name).model_name == name  # a name that could have been set


def test_a_name_that_is_set_is_used() -> None:
    assert served_name(load_settings(model="/models/x", model_name="mine")) == "mine"
