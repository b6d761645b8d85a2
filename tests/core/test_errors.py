import json
import re

import pytest

from core.errors import (
    AppError,
    ArenaFull,
    CacheExpired,
    CacheNotFound,
    Internal,
    InvalidArgument,
    StartupError,
    error_classes,
    from_wire,
    to_wire,
)

EVERY_CLASS = list(error_classes())


def test_there_are_errors_of_both_kinds() -> None:
    startup = [each for each in EVERY_CLASS if issubclass(each, StartupError)]
    assert 5 < len(startup) < len(EVERY_CLASS) - 20


def test_no_two_errors_share_a_code() -> None:
    codes = [each.code for each in EVERY_CLASS]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", EVERY_CLASS)
def test_a_code_is_the_name_of_its_class_in_lower_case(kind: type[AppError]) -> None:
    assert kind.code == re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).lower()


@pytest.mark.parametrize("kind", EVERY_CLASS)
def test_every_error_survives_the_way_to_another_process(kind: type[AppError]) -> None:
    error = kind("What to do.", field="ttl", metadata={"limit": "3"}, retry_after_seconds=1.5)

    copy = from_wire(json.loads(json.dumps(to_wire(error))))

    assert type(copy) is kind
    assert (copy.message, copy.field, copy.metadata) == ("What to do.", "ttl", {"limit": "3"})
    assert copy.retry_after_seconds == 1.5
    assert str(copy) == "What to do."


def test_all_violations_survive_the_way_to_another_process() -> None:
    error = InvalidArgument("Two things.", violations=(("ttl", "Too short."), ("contents", "Missing.")))

    copy = from_wire(json.loads(json.dumps(to_wire(error))))

    assert isinstance(copy, InvalidArgument)
    assert copy.violations == (("ttl", "Too short."), ("contents", "Missing."))


def test_an_invalid_field_is_its_own_violation() -> None:
    assert InvalidArgument("Too short.", field="ttl").violations == (("ttl", "Too short."),)
    assert InvalidArgument("No JSON.").violations == ()


def test_a_code_that_is_not_known_here_is_an_internal_error() -> None:
    wire = to_wire(ArenaFull("No room.")) | {"code": "made_tomorrow"}
    assert type(from_wire(wire)) is Internal


def test_an_ended_cache_is_a_cache_that_is_not_found() -> None:
    assert issubclass(CacheExpired, CacheNotFound)
