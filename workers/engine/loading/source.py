"""Where the model lies that a setting names: the built-in one, a folder of this machine, or a repository of the hub."""

import re
from pathlib import Path

from core.errors import ModelBroken, ModelUnsupported
from core.settings import DEFAULT_MODEL, Settings
from workers.engine.loading.built_in import built_in_model
from workers.engine.loading.progress import Progress, silent

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def model_folder(settings: Settings, progress: Progress = silent) -> Path:
    """Give the folder of the model that is set, converting or fetching it where it is not there yet."""
    if settings.model == DEFAULT_MODEL:
        return built_in_model(settings.model_cache_dir, progress)
    path = Path(settings.model).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.suffix == ".gguf":
        raise ModelUnsupported(
            f"{path} is a GGUF file; only the built-in model is converted from one. Use the Hugging Face folder of the"
            " model.",
            field="model",
        )
    if not _HUB_ID.fullmatch(settings.model):
        raise ModelBroken(
            f"HEADSTART_MODEL is {settings.model!r}, which is neither {DEFAULT_MODEL!r}, nor a folder, nor a hub id"
            " (org/name).",
            field="model",
        )
    try:
        from workers.engine.loading.hub import hub_folder  # noqa: PLC0415 -- only where a hub is asked
    except ImportError as error:
        raise ModelBroken(
            "Fetching a model from the hub needs huggingface_hub: pip install -e '.[worker]'.", field="model"
        ) from error
    return hub_folder(settings.model, progress)


def served_name(settings: Settings) -> str:
    """Give the name the model is served under: the one that is set, else the last part of where it comes from."""
    if settings.model_name is not None:
        return settings.model_name
    name = Path(settings.model).expanduser().name if settings.model != DEFAULT_MODEL else DEFAULT_MODEL
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:63] or "model"
