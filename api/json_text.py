"""JSON as it comes in and goes out: strict about what a peer may send, plain ASCII in what is answered.

Python's parser alone accepts NaN, duplicate keys, lone surrogates and numbers beyond all bounds, and a deeply nested body
raises RecursionError, which is no ValueError. All of them end here, as an InvalidArgument.
"""

import json
import math
import re
from itertools import accumulate
from typing import Any, NoReturn

from core.errors import InvalidArgument

_STRING = re.compile(rb'"[^"]*"?')  # after escapes are removed; an unclosed one reaches to the end
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = [{0x5B: 1, 0x7B: 1, 0x5D: -1, 0x7D: -1}.get(byte, 0) for byte in range(256)]
_SUSPICIOUS_ESCAPE = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_CHUNK_BYTES = 1 << 16
_MOST_NAMES = 1000
_LARGEST_INTEGER = 2**63 - 1


def dump(value: object) -> bytes:
    """Write JSON on one line, in ASCII: U+2028 and its like, raw, end a line for some stream readers."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def load(body: bytes, max_depth: int) -> dict[str, Any]:
    """Read a request body. An empty one is an empty object, as for Google."""
    if not body.strip():
        return {}
    _check_depth(body, max_depth)
    try:
        value = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise _malformed(f"Byte {error.start} is no UTF-8.") from None
    except json.JSONDecodeError as error:
        raise _malformed(f"{error.msg} at line {error.lineno}, column {error.colno}.") from None
    if not isinstance(value, dict):
        raise _malformed("The body must be an object.")
    if _SUSPICIOUS_ESCAPE.search(body):
        _check_text(value, "")
    return value


def _check_depth(body: bytes, limit: int) -> None:
    """Refuse nesting deeper than `limit` before a recursive parser sees it. Needs linear time, whatever is sent."""
    outside_strings = _STRING.sub(b"", body.replace(b"\\\\", b"").replace(b'\\"', b""))
    brackets = outside_strings.translate(None, _NOT_BRACKETS)
    depth = 0
    for start in range(0, len(brackets), _CHUNK_BYTES):
        steps = map(_STEPS.__getitem__, brackets[start : start + _CHUNK_BYTES])
        depths = list(accumulate(steps, initial=depth))
        if max(depths) > limit:
            raise _malformed(f"It is nested more than {limit} levels deep.")
        depth = depths[-1]


def _check_text(value: object, path: str) -> None:
    """Refuse NUL and lone surrogates: no database stores the first, no UTF-8 holds the second."""
    if isinstance(value, str):
        if _UNSTORABLE.search(value):
            raise InvalidArgument(
                f"Invalid value at '{path}': the text has a NUL character or half a surrogate pair. Remove it.",
                field=path,
            )
    elif isinstance(value, dict):
        for key, each in value.items():
            _check_text(key, path)
            _check_text(each, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, each in enumerate(value):
            _check_text(each, f"{path}[{index}]")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > _MOST_NAMES:  # each unknown one would cost an error of its own
        raise _malformed(f"An object has more than {_MOST_NAMES} names.")
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _malformed(f"The name {json.dumps(twice[:100])} appears twice in one object.")
    return result


def _integer(digits: str) -> int:
    if len(digits) > len(str(_LARGEST_INTEGER)) + 1 or abs(int(digits)) > _LARGEST_INTEGER:
        raise _malformed(f"The number {digits[:20]}… is too large.")
    return int(digits)


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _malformed(f"The number {digits[:20]} is too large.")
    return value


def _constant(name: str) -> NoReturn:
    raise _malformed(f"{name} is no JSON number.")


def _malformed(reason: str) -> InvalidArgument:
    return InvalidArgument(f"Invalid JSON payload received. {reason}")
