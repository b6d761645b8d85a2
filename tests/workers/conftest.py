from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from prompting.format import PromptFormat
from tests.tiny_models import tiny_model_folder
from tests.workers.engine.tiny import Oracle
from tests.workers.workshop import Workshop


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the built-in model's tokenizer and template."""
    return tiny_model_folder(tmp_path_factory.mktemp("models"), "llama", seed=1)


@pytest.fixture(scope="session")
def prompt_format(tiny_folder: Path) -> PromptFormat:
    return PromptFormat.load(tiny_folder)


@pytest.fixture(scope="session")
def tiny_module(tiny_folder: Path) -> PreTrainedModel:
    module: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    return module


@pytest.fixture(scope="session")
def oracle(tiny_folder: Path) -> Oracle:
    """From the same weights, and no code of ours."""
    return Oracle(AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32))


@pytest.fixture
def open_workshop(
    tmp_path: Path, tiny_module: PreTrainedModel, oracle: Oracle, prompt_format: PromptFormat
) -> Iterator[Callable[..., Workshop]]:
    """Opens a workshop; at the end of the test everything in it must have ended and be free."""
    opened: list[Workshop] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def start(**config: object) -> Workshop:
        opened.append(Workshop(tmp_path, tiny_module, oracle, prompt_format, **config))
        return opened[-1]

    yield start
    try:
        for workshop in opened:
            workshop.close()
    finally:
        torch.set_num_threads(threads)


@pytest.fixture
def workshop(open_workshop: Callable[..., Workshop]) -> Workshop:
    return open_workshop()
