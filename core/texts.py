"""What somebody may write about a row, so that either database can keep it."""

from core.errors import InvalidArgument

LONGEST_NOTE = 1_000


def check_text(field: str, text: str, purpose: str, most: int) -> None:
    """Raise InvalidArgument for a text that says nothing, is too long, or cannot be kept.

    purpose: what the text must do, in words. most: so many characters. No database keeps NUL, and no UTF-8 holds half a
    surrogate pair, which is how bytes of a command line arrive that are none.
    """
    if not text.strip() or len(text) > most:
        raise InvalidArgument(f"{field} must {purpose}, in 1 to {most} characters.", field=field)
    if "\0" in text or any("\ud800" <= sign <= "\udfff" for sign in text):
        raise InvalidArgument(f"{field} must be UTF-8 without NUL; write it anew.", field=field)
