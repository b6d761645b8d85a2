import pytest

from core.api_keys import mint, parse, verify

PEPPER = bytes(range(32))


def test_a_minted_key_leads_back_to_its_row_and_verifies() -> None:
    key = mint(PEPPER)
    assert parse(key.shown) == key.key_id
    assert len(key.mac) == 32
    assert verify(PEPPER, key.shown, key.mac)


def test_the_key_shows_its_public_id_and_nothing_that_is_stored() -> None:
    key = mint(PEPPER)
    assert key.shown.startswith("hs_" + key.key_id.removeprefix("key_") + "_")
    assert key.mac.hex() not in key.shown
    assert mint(PEPPER).shown != key.shown


@pytest.mark.parametrize("position", [0, 5, 20, 30, 45, 60])
def test_one_changed_sign_is_seen_without_asking_the_database(position: int) -> None:
    shown = mint(PEPPER).shown
    wrong = "b" if shown[position] == "a" else "a"
    assert parse(shown[:position] + wrong + shown[position + 1 :]) is None


@pytest.mark.parametrize(
    "text", ["", "hs_", "AIzaSyA-something-else", "hs_short_secret", "key_abc", "hs_\u00e9", "x" * 10_000]
)
def test_other_strings_are_no_keys(text: str) -> None:
    assert parse(text) is None


def test_nothing_may_stand_around_a_key() -> None:
    shown = mint(PEPPER).shown
    assert parse(shown + "\n") is None
    assert parse(" " + shown) is None


def test_another_secret_another_pepper_and_an_absent_row_do_not_verify() -> None:
    key, other = mint(PEPPER), mint(PEPPER)
    assert not verify(PEPPER, key.shown, other.mac)
    assert not verify(bytes(32), key.shown, key.mac)
    assert not verify(PEPPER, key.shown, None)
