"""The kinds of fields that Gemini's messages are made of, as strict as proto3 JSON: "5" is no integer, 5.0 is one.

Every name may come in camelCase or in snake_case, at every level; null means absent. A field that Gemini has and this
server does not is declared with `unsupported` or `only`, so that it is told from a name that nobody knows.
"""

import base64
import binascii
import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, FailFast, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

T = TypeVar("T")

UNSUPPORTED = "not_supported"  # the kind of error that ends as NotSupported
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_URL_SAFE = str.maketrans("-_", "+/")


class Wire(BaseModel):
    """A message that comes in."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        strict=True,
        frozen=True,
    )


def only(*allowed: object) -> AfterValidator:
    """Accept only these values of a field whose others are not built."""
    instead = " or ".join(map(str, allowed))

    def check(value: object) -> object:
        if value is not None and value not in allowed:
            raise PydanticCustomError(UNSUPPORTED, "only {instead} is supported", {"instead": instead})
        return value

    return AfterValidator(check)


def _refuse(value: object) -> object:
    if value is not None and value != []:
        raise PydanticCustomError(UNSUPPORTED, "leave it out")
    return value


def _integral(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _listed(value: object) -> object:
    return [value] if isinstance(value, dict) else value


def _decoded(value: object) -> object:
    if not isinstance(value, str) or not _BASE64.fullmatch(value):
        raise PydanticCustomError("bytes_type", "it is no base64")
    text = value.translate(_URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise PydanticCustomError("bytes_type", "it is no base64") from None


class _FirstErrorOnly(FailFast):
    __hash__ = object.__hash__  # typing hashes what is annotated, on Python 3.11


Unsupported = Annotated[Any, AfterValidator(_refuse)]
Int32 = Annotated[int, BeforeValidator(_integral), Field(ge=-(2**31), le=2**31 - 1)]
Bytes = Annotated[bytes, BeforeValidator(_decoded)]
EnumName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$")]

# Google's own examples write a single content or part without the brackets, and Google accepts it.
# The first wrong element ends it: a body can hold millions, and each error takes more room than its cause.
Repeated = Annotated[list[T], _FirstErrorOnly(), BeforeValidator(_listed)]
