"""docs/conformance.md says what the conformance suite proves, item by item, and leaves none out in silence."""

from tests.conformance.listing import DOCUMENT, document, proofs, read_checklist

ITEMS = {int(number) for section in read_checklist()["sections"] for number in section["items"]}


def test_the_page_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), (
        "run .venv/bin/python -m tests.conformance.listing"
    )


def test_every_item_has_a_test_or_a_reason() -> None:
    assert set(range(1, 86)) == ITEMS
    left = {int(number) for number in read_checklist()["left"]}
    assert ITEMS - proofs().keys() - left == set()


def test_no_test_is_for_an_item_that_is_not_there() -> None:
    assert proofs().keys() <= ITEMS
