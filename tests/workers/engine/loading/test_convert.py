import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from core.errors import ModelUnsupported
from prompting.format import PromptFormat
from tests.workers.engine.loading.tiny_gguf import KV_HEADS, LAYERS, write_gguf
from workers.engine.loading.convert import convert_gguf
from workers.engine.loading.gate import check
from workers.engine.loading.progress import silent


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


@pytest.fixture
def folder(gguf: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    convert_gguf(gguf, folder, silent)
    return folder


def test_every_weight_is_what_transformers_reads_from_the_file(gguf: Path, folder: Path) -> None:
    expected = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert ours.state_dict().keys() == expected.state_dict().keys()
    for name, weight in expected.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight), name
    ids = torch.arange(10, 40)[None]
    assert torch.equal(ours(ids).logits, expected(ids).logits)


def test_the_folder_is_complete_and_passes_the_gate(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    facts = check(folder)
    assert (facts.layers, facts.kv_heads, facts.context_tokens) == (LAYERS, KV_HEADS, 256)
    assert facts.weight_bytes == 4 * facts.parameter_count
    assert PromptFormat.load(folder).eos_token_ids == (2,)


def test_digits_stand_alone_as_in_the_original_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode("hello\n\n12").tokens == ["hello", "ĊĊ", "1", "2"]
    assert tokenizer.encode("<|im_end|> hello").ids[0] == 2
    assert tokenizer.decode(tokenizer.encode("ü 漢 👍").ids) == "ü 漢 👍"


def test_transformers_loads_the_tokenizer(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], return_dict=False) == [
        1,
        *tokenizer.encode("hello"),
        2,
    ]


def test_progress_goes_up_to_one(gguf: Path, tmp_path: Path) -> None:
    steps: list[tuple[str, float]] = []
    (tmp_path / "again").mkdir()
    convert_gguf(gguf, tmp_path / "again", lambda what, fraction: steps.append((what, fraction)))
    fractions = [fraction for what, fraction in steps if what == "Unpacking weights"]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert len(fractions) == 2 + 9 * LAYERS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "qwen2"}, "general.architecture = 'llama'"),
        ({"pre": "llama-bpe"}, "tokenizer.ggml.pre"),
    ],
)
def test_another_kind_of_file_is_refused(change: dict[str, str], message: str, tmp_path: Path) -> None:
    gguf = write_gguf(
        tmp_path / "other.gguf",
        architecture=change.get("architecture", "llama"),
        pre=change.get("pre", "smollm"),
    )
    with pytest.raises(ModelUnsupported, match=message):
        convert_gguf(gguf, tmp_path, silent)


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "rope_freqs.weight", "blk.0"])
def test_an_unknown_tensor_is_refused(name: str, tmp_path: Path) -> None:
    gguf = write_gguf(tmp_path / "other.gguf", more={name: np.zeros(4, np.float32)})
    with pytest.raises(ModelUnsupported, match="which no Llama has"):
        convert_gguf(gguf, tmp_path, silent)


def test_the_config_says_what_the_file_says(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 100000.0}
    assert config["tie_word_embeddings"] is True
    assert config["eos_token_id"] == 2
