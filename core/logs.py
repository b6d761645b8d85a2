"""Logging: one line a record on stderr, `key=value`; no prompt text, no key, no line that a caller could forge."""

import json
import logging
import re
import sys
from datetime import UTC, datetime

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_PLAIN = re.compile(r"[!#-<>-~]+")  # printable ASCII, but no blank, no quote, no equals sign
# In the query of an address, where Gemini's clients may put it; the password of an address, such as a database's; and
# our own keys, wherever they appear.
_SECRETS = re.compile(
    r"""([?&](?:key|access_token|password)=)[^&\s"']+|(://[^\s/:@]*:)[^\s/@]+(?=@)|\bhs_[A-Za-z0-9_]{8,}"""
)


class LineFormatter(logging.Formatter):
    """Writes a record, its `extra` values and its traceback as one line."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return " ".join(f"{name}={_quote(_hide(str(value)))}" for name, value in fields.items())


def configure(level: str) -> None:
    """Send everything of `level` and above to stderr; call it once, at the edge of the process."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("httpx", "httpcore", "filelock", "alembic"):  # they tell every step at level info or debug
        logging.getLogger(chatty).setLevel(max(logging.WARNING, root.level))


def _hide(text: str) -> str:
    return _SECRETS.sub(lambda found: (found.group(1) or found.group(2) or "") + "[hidden]", text)


def _quote(text: str) -> str:
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
