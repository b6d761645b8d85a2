"""Turns what pydantic found wrong with a message into Google's words: the path in snake_case, one violation each."""

import json
import re
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from api.dialects.gemini.fields import UNSUPPORTED, Wire
from core.errors import AppError, InvalidArgument, NotSupported

M = TypeVar("M", bound=Wire)

_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")
_MOST_VIOLATIONS = 20
_UNKNOWN = "extra_forbidden"
_TYPES = {
    "string_type": "TYPE_STRING",
    "int_type": "TYPE_INT32",
    "float_type": "TYPE_FLOAT",
    "bool_type": "TYPE_BOOL",
    "bytes_type": "TYPE_BYTES",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "string_pattern_mismatch": "TYPE_ENUM",
}


def parse(kind: type[M], body: dict[str, Any], root: str = "") -> M:
    """Read a message; `root` is the path that Google gives the body itself, such as cached_content."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise _rejection(error.errors(include_url=False), root) from None  # pydantic's text repeats the body


def snake(name: str) -> str:
    return _CAPITAL.sub(r"_\1", name).lower()


def path_of(location: tuple[int | str, ...], root: str = "") -> str:
    """Write a path as Google does: contents[0].inline_data.mime_type."""
    path = root
    for step in location:
        path += f"[{step}]" if isinstance(step, int) else f".{snake(step)}" if path else snake(step)
    return path


def _rejection(errors: list[ErrorDetails], root: str) -> AppError:
    wrong = [each for each in errors if each["type"] != UNSUPPORTED]
    if wrong:
        violations = tuple(_violation(each, root) for each in wrong[:_MOST_VIOLATIONS])
        message = "\n".join(description for _, description in violations)
        return InvalidArgument(message, field=violations[0][0], violations=violations)
    path = path_of(errors[0]["loc"], root)
    return NotSupported(f"'{path}' is not supported by this server: {errors[0]['msg']}.", field=path)


def _violation(error: ErrorDetails, root: str) -> tuple[str, str]:
    path = path_of(error["loc"], root)
    if error["type"] == _UNKNOWN:
        name, parent = error["loc"][-1], path_of(error["loc"][:-1], root)
        where = f" at '{parent}'" if parent else ""
        text = f'Invalid JSON payload received. Unknown name "{str(name)[:100]}"{where}: Cannot find field.'
        return (f"{parent}.{name}" if parent else str(name))[:300], text
    value = _shown(error["input"])
    if error["type"] in _TYPES:
        return path, f"Invalid value at '{path}' ({_TYPES[error['type']]}), {value}"
    instead = "" if isinstance(error["input"], dict | list) else f", not {value}"
    return path, f"Invalid value at '{path}': {error['msg']}{instead}"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = value[:100] if isinstance(value, str) else value
    return json.dumps(text, ensure_ascii=False, default=str)
