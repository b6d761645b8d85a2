from pathlib import Path

import pytest

from prompting.format import PromptFormat
from tests.prompting.folders import llama_2_folder, llama_3_folder, qwen_folder
from tests.tiny_models import built_in_folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model folder of each kind."""
    base = tmp_path_factory.mktemp("formats")
    return {
        "built-in": built_in_folder(),
        "llama-2": llama_2_folder(base / "llama-2"),
        "llama-3": llama_3_folder(base / "llama-3"),
        "qwen": qwen_folder(base / "qwen"),
    }


@pytest.fixture(scope="session")
def formats(folders: dict[str, Path]) -> dict[str, PromptFormat]:
    return {name: PromptFormat.load(folder) for name, folder in folders.items()}


@pytest.fixture(scope="session")
def built_in(formats: dict[str, PromptFormat]) -> PromptFormat:
    return formats["built-in"]
