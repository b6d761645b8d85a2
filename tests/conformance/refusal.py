"""An error as a client's user meets it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Refusal(Exception):  # noqa: N818 -- an answer, and no fault of the test
    """type: the class that the client raised. code, status and message: what it made of the envelope, None where it
    has nothing of the kind. body: the whole envelope. results: what a stream had yielded before."""

    type: str
    message: str
    code: int | None = None
    status: str | None = None
    body: Any = None
    results: list[Any] = field(default_factory=list)

    @property
    def details(self) -> list[dict[str, Any]]:
        return list(self.body["error"].get("details", []))

    @property
    def reason(self) -> str:
        return str(self.details[0]["reason"])

    def detail(self, kind: str) -> dict[str, Any]:
        """Give the one detail of a kind, such as BadRequest."""
        (found,) = [
            each for each in self.details if each["@type"] == f"type.googleapis.com/google.rpc.{kind}"
        ]
        return found
