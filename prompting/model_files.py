"""Reading the small files of a model folder; whatever is missing or damaged is named, with its path."""

import json
from pathlib import Path
from typing import Any

from core.errors import ModelBroken


def read_text(path: Path) -> str:
    """Give the file's text; raise ModelBroken where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelBroken(
            f"The model folder has no {path.name}: {path.parent}. Fetch the complete folder of the model.",
            field="model",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelBroken(f"{path} cannot be read: {error}. Fetch the file again.", field="model") from error


def read_json(path: Path) -> dict[str, Any]:
    """Give the file's JSON object; raise ModelBroken where there is none."""
    text = read_text(path)
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ModelBroken(f"{path} is no JSON: {error}. Fetch the file again.", field="model") from error
    if not isinstance(content, dict):
        raise ModelBroken(f"{path} holds no JSON object. Fetch the file again.", field="model")
    return content


def read_json_if_present(path: Path) -> dict[str, Any]:
    """Give the file's JSON object, an empty one where there is no such file."""
    return read_json(path) if path.exists() else {}
