"""What a database says when it refuses: which of it is over in a moment, and that none of it quotes a customer's row."""

import sqlite3

from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError, OperationalError

from core.errors import Unavailable

# PostgreSQL's SQLSTATEs, whole or by class (their first two characters).
_BUSY = (
    "40001",  # serialization_failure
    "40P01",  # deadlock_detected
    "55P03",  # lock_not_available
    "57014",  # query_canceled: a time limit of the server's
)
_UNWRITABLE = (
    "25006",  # read_only_sql_transaction: a standby, or a server that was set to it
    "53",  # insufficient_resources: of disk, memory, connections
    "58",  # system_error
)
_UNREACHABLE = (
    "08",  # connection_exception
    "25P03",  # idle_in_transaction_session_timeout
    "57P",  # operator_intervention: it stops, starts or has crashed
)


def as_unavailable(error: DBAPIError, *, writing: bool) -> Unavailable | None:
    """Say of an error of the database's that it is no fault of the request's; None if it is one, or ours."""
    if isinstance(error.orig, sqlite3.Error):
        return _sqlite(error.orig, writing=writing)
    state: str | None = getattr(error.orig, "sqlstate", None)
    if _is(state, _BUSY):
        return _busy()
    # A connection that could not be made, or was cut without a word, has no SQLSTATE.
    is_lost = error.connection_invalidated or (state is None and isinstance(error, OperationalError))
    if is_lost or _is(state, _UNREACHABLE):
        return Unavailable("The database does not answer. Try again.", retry_after_seconds=1)
    if writing and _is(state, _UNWRITABLE):
        return _unwritable(str(error.orig))
    return None


def hide_values(context: ExceptionContext) -> None:
    """Cut an error of PostgreSQL's down to its first line: DETAIL and CONTEXT quote the row that broke a rule."""
    original, wrapped = context.original_exception, context.sqlalchemy_exception
    first_line = getattr(getattr(original, "diag", None), "message_primary", None)
    if first_line is None:
        return
    original.args = (first_line,)
    if wrapped is not None:
        wrapped.args = (f"({type(original).__qualname__}) {first_line}",)


def _sqlite(error: sqlite3.Error, *, writing: bool) -> Unavailable | None:
    # The low byte; the rest tells kinds of one error apart. What the driver itself refuses has no code.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code == sqlite3.SQLITE_BUSY:
        return _busy()
    if writing and code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY}:
        return _unwritable(str(error))
    return None


def _busy() -> Unavailable:
    return Unavailable("The database is busy. Try again.", retry_after_seconds=1)


def _unwritable(reason: str) -> Unavailable:
    return Unavailable(
        f"The database cannot be written ({reason}); nothing was changed. It works again once its disk has room and "
        "can be written.",
        retry_after_seconds=10,
    )


def _is(state: str | None, kinds: tuple[str, ...]) -> bool:
    return state is not None and state.startswith(kinds)
