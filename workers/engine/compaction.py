"""Paths that lie scattered over the arena are moved together while the engine has nothing else to do.

Attention makes one call for each run of a path, in every layer of every step. Called on the engine thread, between steps.
"""

from workers.engine.copies import append_segment
from workers.engine.segment import Segments
from workers.engine.tree import PrefixTree

MOST_RUNS = 4


def compact_one(tree: PrefixTree, segments: Segments, most_runs: int = MOST_RUNS) -> bool:
    """Move the nodes of one path that lies in more runs than that into a single one, in order. False where there is none to move."""
    path = tree.scattered_path(most_runs)
    if path is None:
        return False
    rest = segments.allocate(sum(node.block_count for node in path))
    assert rest is not None, "a run of this size was free"
    for node in path:
        assert node.segment is not None, "a ready node has its KV"
        if node.block_count < rest.block_count:
            place, rest = segments.divide(rest, node.block_count)
        else:
            place = rest
        append_segment(segments.arena, place, node.segment, 0, node.segment.length)
        segments.free(node.segment)
        node.segment = place
    return True
