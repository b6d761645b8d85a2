"""A cache's last tokens, too few for a block: never shared, never appended to."""

from dataclasses import dataclass

from workers.engine.node import Node
from workers.engine.stored import Stored


@dataclass(slots=True, eq=False)
class Piece(Stored):
    """Behind the whole blocks that end with `node`.

    is_ended: its cache is no more, so that nothing below the arena may keep it. is_unread: and no request reads it any more.
    """

    cache_id: str
    node: Node
    is_ended: bool = False
    is_unread: bool = False

    def __post_init__(self) -> None:
        self.begin = self.node.end

    def path(self) -> list[Stored]:
        return [*self.node.path(), self]

    @property
    def is_findable(self) -> bool:
        return not self.is_ended
