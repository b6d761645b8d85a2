"""A model from the Hugging Face hub: its small files first, so that one that cannot be served is not downloaded."""

from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError
from tqdm.auto import tqdm  # type: ignore[import-untyped]

from core.errors import ModelBroken
from prompting.model_files import read_json
from workers.engine.loading.gate import check_config
from workers.engine.loading.progress import Progress

_SMALL_FILES = ["*.json", "*.jinja"]
_FILES = [*_SMALL_FILES, "*.safetensors"]


def hub_folder(repo_id: str, progress: Progress) -> Path:
    """Give the folder of the repository's newest version, or the one downloaded before where the hub is out of reach."""
    progress(f"Asking the hub for {repo_id}", 0.0)
    check_config(read_json(_fetch(repo_id, _SMALL_FILES, progress) / "config.json"))
    return _fetch(repo_id, _FILES, progress)


def _fetch(repo_id: str, patterns: list[str], progress: Progress) -> Path:
    try:
        return Path(
            snapshot_download(
                repo_id, allow_patterns=patterns, tqdm_class=_bar(f"Downloading {repo_id}", progress)
            )
        )
    except GatedRepoError as error:
        raise ModelBroken(
            f"The hub gives {repo_id} only to those who accepted its terms: accept them there, then set HF_TOKEN.",
            field="model",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelBroken(
            f"The hub has no model {repo_id}, or it is private. Check the name, and set HF_TOKEN for a private one.",
            field="model",
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelBroken(
            f"{repo_id} is not on this machine and the hub cannot be reached ({type(error).__name__}). Connect once to"
            " download it, or set HEADSTART_MODEL to a folder.",
            field="model",
        ) from error


def _bar(what: str, progress: Progress) -> type[Any]:
    """A bar that draws nothing itself, as the hub's client wants one."""

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "disable": True})
            self._counts_bytes = kwargs.get("unit") == "B"  # another one counts files

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self.total and self._counts_bytes:
                progress(what, min(self.n / self.total, 1.0))

    return Bar
