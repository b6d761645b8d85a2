"""The settings of `headstart serve` that decide about figures, read by the code that serve uses."""

from bench.contestant import Setting
from core.settings import Settings

_DECIDING = (
    "model",
    "device",
    "dtype",
    "threads",
    "arena_bytes",
    "host_bytes",
    "kv_dir",
    "kv_disk_bytes",
    "prefill_chunk_tokens",
    "max_running_requests",
    "tail_tokens",
    "database_pool_size",
)


def deciding_settings(settings: Settings) -> dict[str, Setting]:
    return {name: getattr(settings, name) for name in _DECIDING}


def changed_settings(settings: Settings) -> list[str]:
    """Those that the environment has set to something else than the default."""
    return [
        name for name in _DECIDING if getattr(settings, name) != Settings.model_fields[name].get_default()
    ]
