import math
import re
from collections.abc import Callable

import pytest

from core.ids import cache_name, new_cache_id, new_incarnation, new_key_id, new_project_id, new_request_id


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (new_cache_id, r"[a-z0-9]{24}"),
        (new_request_id, r"gen_[a-z0-9]{24}"),
        (new_project_id, r"proj_[a-z0-9]{24}"),
        (new_key_id, r"key_[a-z0-9]{24}"),
        (new_incarnation, r"inc_[a-z0-9]{24}"),
    ],
)
def test_an_id_has_the_shape_of_its_kind_and_comes_once(make: Callable[[], str], shape: str) -> None:
    ids = {make() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(shape, each) for each in ids)


def test_a_cache_id_cannot_be_guessed() -> None:
    assert 24 * math.log2(36) >= 120
    assert set("".join(new_cache_id() for _ in range(500))) == set("abcdefghijklmnopqrstuvwxyz0123456789")


def test_a_cache_is_named_as_gemini_names_it() -> None:
    assert cache_name("abc") == "cachedContents/abc"
