"""An engine starts warm, holds nothing, and says what is wrong with its settings in numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch

from core.errors import ModelTooLarge, ModelUnsupported, SettingsInvalid
from core.settings import load_settings
from tests.tiny_models import tiny_model_folder
from tests.workers.engine.driving import engine_config
from tests.workers.engine.tiny import tiny_modules
from workers.engine import start
from workers.engine.attention import choose_backend, plain_attention
from workers.engine.model import Model
from workers.engine.segment import Segments
from workers.engine.start import _default_arena_bytes, _dtype, start_engine
from workers.engine.worst_step import run_worst_step, worst_step_bytes

FINGERPRINT = "tokenizer:weights"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_folder(tmp_path_factory.mktemp("models"), "qwen2", seed=1, context_tokens=2048)


@pytest.mark.parametrize(("name", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_it_has_answered_once_and_holds_nothing(folder: Path, name: str, dtype: torch.dtype) -> None:
    engine = start_engine(folder, load_settings(dtype=name, arena_bytes=10_000_000), FINGERPRINT)
    try:
        assert engine.config.dtype == dtype
        assert engine.counters.decode_tokens == 2
        assert engine.arena_tokens == 10_000_000 // (64 * 2 * 2 * 2 * 16 * dtype.itemsize) * 64

        def used(segments: Segments) -> int:
            segments.check_integrity()
            return segments.arena.pool.used_count

        assert engine.call(used).result(10) == 0
        assert engine.is_running
    finally:
        engine.stop()
    assert not engine.is_running


def test_an_arena_that_could_refuse_a_full_context_is_refused(folder: Path) -> None:
    block_bytes = 64 * 2 * 2 * 2 * 16 * 4
    settings = load_settings(dtype="float32", arena_bytes=64 * block_bytes)
    with pytest.raises(SettingsInvalid, match=f"2048 tokens .* {65 * block_bytes} bytes") as refusal:
        start_engine(folder, settings, FINGERPRINT)
    assert refusal.value.field == "arena_bytes"
    start_engine(folder, load_settings(dtype="float32", arena_bytes=65 * block_bytes), FINGERPRINT).stop()


@pytest.mark.parametrize(
    "settings", [{"arena_bytes": 10**15}, {"max_running_requests": 10**9}, {"tail_tokens": 10**9}]
)
def test_more_kv_than_there_is_memory_is_refused(folder: Path, settings: dict[str, int]) -> None:
    with pytest.raises(SettingsInvalid, match=r"too large: .* bytes, and \d+ are available") as refusal:
        start_engine(folder, load_settings(**{"arena_bytes": 10_000_000} | settings), FINGERPRINT)
    assert refusal.value.field == "arena_bytes"


def test_the_arena_of_a_cpu_is_half_of_what_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "usable_memory_bytes", lambda: 9_001)
    assert _default_arena_bytes(torch.device("cpu"), beside_bytes=2_000) == 4_500


@pytest.mark.parametrize(("is_native", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_numbers_are_as_short_as_the_processor_computes(
    is_native: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "_cpu_computes_bfloat16", lambda: is_native)
    assert _dtype("auto", torch.device("cpu")) == dtype
    assert _dtype("float16", torch.device("cpu")) == torch.float16


def test_the_arena_of_a_gpu_leaves_room_for_the_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (7_000, 24_000))
    assert _default_arena_bytes(torch.device("cuda"), beside_bytes=2_000) == 4_500


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "usable_memory_bytes", lambda: 20_000_000)
    monkeypatch.setattr(Model, "load", None)
    with pytest.raises(ModelTooLarge, match=r"needs 0\.03 GB .*; 0\.02 GB are available"):
        start_engine(folder, load_settings(dtype="float32"), FINGERPRINT)


@pytest.mark.trap("T38")
def test_a_model_that_answers_differently_with_a_shared_prefix_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unscaled(*args: torch.Tensor, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return plain_attention(*args, **how | {"scale": 1.0})

    monkeypatch.setattr(start, "FAMILIES", ())  # of a family that no test covers
    monkeypatch.setattr(start, "choose_backend", lambda *_: unscaled)
    with pytest.raises(ModelUnsupported, match="shared prefix"):
        start_engine(folder, load_settings(dtype="float32", arena_bytes=10_000_000), FINGERPRINT)


def test_a_device_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(SettingsInvalid, match="HEADSTART_DEVICE=warp") as refusal:
        start_engine(folder, load_settings(device="warp", arena_bytes=10_000_000), FINGERPRINT)
    assert refusal.value.field == "device"


def test_the_largest_step_is_a_chunk_beside_all_answers() -> None:
    module, _ = tiny_modules("llama")
    model = Model(module)
    config = engine_config(model.shape, max_running_requests=3)
    logits = run_worst_step(model, config, choose_backend(config.device, config.dtype, model.shape.head_size))
    assert logits.shape == (4, model.vocab_size)
    beside = worst_step_bytes(
        model, config, choose_backend(config.device, config.dtype, model.shape.head_size)
    )
    assert beside >= model.workspace_bytes(103) + logits[:3].nbytes
