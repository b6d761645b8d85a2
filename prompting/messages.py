"""One turn of a conversation, as every dialect hands it over and as a cache keeps it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    text: str

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Message":
        """Read what `to_json` wrote."""
        role, text = value["role"], value["text"]
        if role not in get_args(Role) or not isinstance(text, str):
            raise ValueError(
                f"a stored message is damaged: role {role!r}, text of type {type(text).__name__}"
            )
        return cls(role, text)

    def to_json(self) -> dict[str, str]:
        return {"role": self.role, "text": self.text}


def to_json(messages: Iterable[Message]) -> list[dict[str, str]]:
    """Write messages as plain JSON values."""
    return [message.to_json() for message in messages]
