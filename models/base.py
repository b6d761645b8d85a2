"""What all tables share: the declarative base, names of constraints, and the column types."""

import sys
from array import array
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import DateTime, Dialect, Enum, LargeBinary, MetaData
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeDecorator


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


# How a row is held that will be changed: others may refer to it meanwhile, which PostgreSQL makes sure of by a lock.
TO_CHANGE: dict[str, Any] = {"key_share": True}


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC datetime to the microsecond, on a database with time zones or without."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a datetime without a time zone says nothing: use core.clock")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class TokenIds(TypeDecorator[tuple[int, ...]]):
    """Token ids as little-endian int32, four bytes each."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Iterable[int] | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        return None if value is None else _little_endian(array("i", value)).tobytes()

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> tuple[int, ...] | None:  # noqa: ARG002
        return None if value is None else tuple(_little_endian(array("i", value)))


def enum_text(kind: type[StrEnum]) -> Enum:
    """Store an enum as its text; the table's checks say which texts are right together with what."""
    return Enum(kind, native_enum=False, length=20, values_callable=_values, validate_strings=True)


def one_of(column: str, values: Iterable[StrEnum]) -> str:
    """Write the SQL condition of a check: `column` holds one of `values`."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


def _values(kind: type[StrEnum]) -> Sequence[str]:
    return [member.value for member in kind]


def _little_endian(ids: "array[int]") -> "array[int]":
    assert ids.itemsize == 4
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
