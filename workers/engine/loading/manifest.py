"""The list of what a converted folder must contain, written last: a folder without it was never finished."""

import json
from pathlib import Path

from workers.engine.loading.digests import DigestCache
from workers.engine.loading.progress import Progress, silent

FILE_NAME = "manifest.json"
FORMAT = 1  # raised when the conversion itself changes: older folders are made again


def write_manifest(folder: Path, *, source_sha256: str, digests: DigestCache, progress: Progress) -> None:
    """Record every file of the folder, and the source it was made from."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": digests.sha256(path, progress)}
        for path in sorted(folder.iterdir())
    }
    content = {"format": FORMAT, "source_sha256": source_sha256, "files": files}
    (folder / FILE_NAME).write_text(json.dumps(content, indent=1), encoding="utf-8")


def find_damage(
    folder: Path, *, source_sha256: str, digests: DigestCache, progress: Progress = silent
) -> str | None:
    """Say what is wrong with a converted folder, None where every byte is as it was written."""
    try:
        content = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
        if content["format"] != FORMAT or content["source_sha256"] != source_sha256:
            return "it was made from another file or by another version"
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in content["files"].items()}
        present = {path.name for path in folder.iterdir()} - {FILE_NAME}
    except FileNotFoundError:
        return "it was never finished"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return f"its {FILE_NAME} cannot be read"
    for name in sorted(
        present ^ expected.keys()
    ):  # a stray adapter or index would be loaded along with the model
        return f"{name} is missing" if name in expected else f"{name} does not belong there"
    for name, (size, sha256) in expected.items():
        path = folder / name
        if path.stat().st_size != size or digests.sha256(path, progress) != sha256:
            return f"{name} was changed"
    return None
