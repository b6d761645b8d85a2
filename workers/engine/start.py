"""From settings to a running engine: device, number format, memory, weights, warm-up."""

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import torch

from core.errors import AppError, SettingsInvalid
from core.ids import new_incarnation
from core.sampling import Sampling
from core.settings import Settings
from workers.engine.attention import choose_backend
from workers.engine.blocks import BLOCK_TOKENS
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.faithfulness import check_faithful
from workers.engine.loading.gate import FAMILIES, check, check_fit
from workers.engine.memory import usable_memory_bytes
from workers.engine.model import Model
from workers.engine.sequence import Build, Ending, Sequence
from workers.engine.tiers.disk_store import STAGING_SUFFIX, DiskStore, folder_lock
from workers.engine.tiers.host_store import HostStore
from workers.engine.tiers.kv_file import SUFFIX
from workers.engine.tiers.manifest import KvFormat
from workers.engine.worst_step import worst_step_bytes

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def start_engine(
    folder: Path, settings: Settings, fingerprint: str, *, kv_folder: Path | None = None
) -> Engine:
    """Load the model and start its engine; returns once it has answered a first request. kv_folder: for KV files; None: it keeps none.

    Raises SettingsInvalid for a device that is not there or an arena too small for one full context or too large for the
    device, ModelTooLarge for weights that do not fit, ModelUnsupported for a model that answers differently with a shared
    prefix.
    """
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    device = _device(settings.device)
    dtype = _dtype(settings.dtype, device)
    facts = check(folder)
    check_fit(facts, element_bytes=dtype.itemsize, available_bytes=_available_bytes(device))
    model = Model.load(folder, device=device, dtype=dtype)
    attend = choose_backend(device, dtype, model.shape.head_size)
    config = EngineConfig(
        device=device,
        dtype=dtype,
        fingerprint=fingerprint,
        arena_bytes=settings.arena_bytes or 0,
        prefill_chunk_tokens=settings.prefill_chunk_tokens,
        max_running_requests=settings.max_running_requests,
        max_waiting_requests=settings.max_waiting_requests,
        tail_tokens=settings.tail_tokens,
    )
    beside_bytes = _tail_bytes(model, config) + worst_step_bytes(model, config, attend)
    if settings.arena_bytes is None:
        config = replace(config, arena_bytes=_default_arena_bytes(device, beside_bytes))
    _check_arena(model, config, beside_bytes)
    if (
        facts.model_type not in FAMILIES or device.type != "cpu"
    ):  # the others are compared by the tests, on CPUs
        check_faithful(model, config, attend)
    engine = Engine(
        model,
        config,
        _host(settings.host_bytes, model, config),
        _disk(kv_folder, settings.kv_disk_bytes, model, config),
    )
    engine.start()
    _warm_up(engine)
    return engine


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsInvalid(
            f"HEADSTART_DEVICE={name}: torch cannot use it ({error}).", field="device"
        ) from error
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        return _DTYPES[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if _cpu_computes_bfloat16() else torch.float32


def _cpu_computes_bfloat16() -> bool:
    """Whether the processor has bf16 arithmetic; without it bf16 is emulated, and slower than float32."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="ignore")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _available_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free
    return usable_memory_bytes()


def _tail_bytes(model: Model, config: EngineConfig) -> int:
    return model.shape.kv_bytes_per_token(config.dtype) * config.max_running_requests * config.tail_tokens


def _default_arena_bytes(device: torch.device, beside_bytes: int) -> int:
    """Of a GPU nine tenths of what weights, tails and the largest step leave; of a CPU's memory half, for other programs live
    there too."""
    available = _available_bytes(device)
    return (available - beside_bytes) * 9 // 10 if device.type == "cuda" else available // 2


def _check_arena(model: Model, config: EngineConfig, beside_bytes: int) -> None:
    """Arena, tails and the largest step must fit the device, and one request of full length beside the pins: the share left to it."""
    available = _available_bytes(config.device)
    if config.arena_bytes + beside_bytes > available:
        raise SettingsInvalid(
            f"HEADSTART_ARENA_BYTES={config.arena_bytes} is too large: with the tails of {config.max_running_requests} "
            f"requests, {config.tail_tokens} tokens each, and the largest step, it takes {config.arena_bytes + beside_bytes} bytes, "
            f"and {available} are available. Lower it, HEADSTART_MAX_RUNNING_REQUESTS or HEADSTART_TAIL_TOKENS.",
            field="arena_bytes",
        )
    block_bytes = model.shape.kv_bytes_per_token(config.dtype) * BLOCK_TOKENS
    needed = int(model.shape.context_tokens / BLOCK_TOKENS / (1 - config.pinned_share) + 1) * block_bytes
    if config.arena_bytes < needed:
        raise SettingsInvalid(
            f"HEADSTART_ARENA_BYTES={config.arena_bytes} is too small: a context of {model.shape.context_tokens} tokens "
            f"must fit the half that pins leave free, which takes {needed} bytes.",
            field="arena_bytes",
        )


def _host(size_bytes: int | None, model: Model, config: EngineConfig) -> HostStore | None:
    """Host memory beside a device's arena: on a CPU the arena is host memory."""
    if size_bytes is None:
        size_bytes = usable_memory_bytes() // 2 if config.device.type == "cuda" else 0
    return HostStore(model.shape, config, size_bytes) if size_bytes else None


def _disk(
    folder: Path | None, limit_bytes: int | None, model: Model, config: EngineConfig
) -> DiskStore | None:
    """The folder for KV files, its budget counted with those that are there."""
    if folder is None:
        return None
    if limit_bytes == 0:
        _empty(folder)
        return None
    if limit_bytes is None:
        limit_bytes = (_free_bytes(folder) + _used_bytes(folder)) // 4
    kv_format = KvFormat.of(config.fingerprint, config.dtype, model.shape)
    return DiskStore(
        folder,
        kv_format,
        limit_bytes=limit_bytes,
        incarnation=new_incarnation(),
        lock=folder_lock(folder),
    )


def _used_bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.glob(f"*{SUFFIX}"))
    except OSError:  # the engine will say so
        return 0


def _empty(folder: Path) -> None:
    """Nobody would remove these files when their caches end. Raises SettingsInvalid where it cannot be done."""
    try:
        for path in (*folder.glob(f"*{SUFFIX}"), *folder.glob(f"*{STAGING_SUFFIX}")):
            path.unlink(missing_ok=True)
    except OSError as error:
        raise SettingsInvalid(
            f"HEADSTART_KV_DISK_BYTES is 0, and KV files in {folder} cannot be removed ({error.strerror}). Remove them.",
            field="kv_disk_bytes",
        ) from error


def _free_bytes(folder: Path) -> int:
    """Of the disk that the folder is on, or will be; 0 where that cannot be told."""
    try:
        there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
        return shutil.disk_usage(there).free
    except OSError:
        return 0


def _warm_up(engine: Engine) -> None:
    """Build a small cache and answer from it: first calls are slow, and a broken seam shows here, not to a user."""
    outcome: list[tuple[Ending, AppError | None]] = []
    done = threading.Event()

    def on_end(ending: Ending, error: AppError | None) -> None:
        outcome.append((ending, error))
        if ending != Ending.BUILT:
            done.set()

    engine.build(Build("warm-up", b"warm-up", tuple(range(BLOCK_TOKENS + 1)), [on_end]))
    engine.submit(
        Sequence(
            request_id="warm-up request",
            token_ids=[1, 2, 3],
            cache_id="warm-up",
            sampling=Sampling(temperature=1.0, top_p=0.95, top_k=64, seed=0),
            max_output_tokens=3,
            stop_token_ids=frozenset(),
            on_token=lambda *_: False,
            on_end=on_end,
        )
    )
    done.wait()
    engine.drop("warm-up")
    if outcome[-1][0] != Ending.MAX_TOKENS:
        engine.stop()
        errors = [error for _, error in outcome if error is not None]
        raise errors[0] if errors else RuntimeError(f"the engine's first request ended as {outcome[-1][0]}")
