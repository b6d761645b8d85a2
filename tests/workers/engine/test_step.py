"""How rows are packed into one line, and who reads what."""

import pytest
import torch

from tests.workers.engine.driving import engine_config
from workers.engine.arena import Arena, TailPool, Windows
from workers.engine.attention import plain_attention
from workers.engine.blocks import Run
from workers.engine.config import ModelShape
from workers.engine.segment import Segments
from workers.engine.step import Row, Step

SHAPE = ModelShape(layers=1, kv_heads=2, head_size=8, context_tokens=512)


def test_rows_stand_in_one_line_with_their_own_positions() -> None:
    config = engine_config(SHAPE)
    arena, tails = Arena(SHAPE, config), TailPool(SHAPE, config)
    cached = Segments(arena).allocate(100, is_pinned=True)
    assert cached is not None
    rows = (
        Row((7,), 104, reads=(cached,), seat=0, tail_length=4),
        Row((8, 9), 100, reads=(cached,), seat=1),
        Row((10, 11, 12), 0, reads=(), target=cached, wants_logits=False),
        Row((13, 14), 30, reads=(), seat=2, tail_length=30),
    )
    step = Step(rows, arena, tails, plain_attention, torch.device("cpu"))
    assert step.token_ids.tolist() == [[7, 8, 9, 10, 11, 12, 13, 14]]
    assert step.position_ids.tolist() == [[104, 100, 101, 0, 1, 2, 30, 31]]
    assert step.logit_tokens.tolist() == [0, 2, 7]
    assert step.decode_count == 1


def test_decode_rows_come_first() -> None:
    config = engine_config(SHAPE)
    rows = (Row((1, 2), 0, reads=(), seat=0), Row((3,), 5, reads=(), seat=1, tail_length=5))
    with pytest.raises(ValueError, match="first"):
        Step(rows, Arena(SHAPE, config), TailPool(SHAPE, config), plain_attention, torch.device("cpu"))


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 0, []),
        (0, 1, [(640, 641)]),
        (0, 128, [(640, 768)]),
        (127, 130, [(767, 768), (0, 2)]),
        (100, 250, [(740, 768), (0, 64), (1280, 1338)]),
        (192, 193, [(1280, 1281)]),
        (0, 999, [(640, 768), (0, 64), (1280, 1408)]),
    ],
)
def test_tokens_of_a_segment_in_pieces_are_found_where_they_lie(
    start: int, stop: int, expected: list[tuple[int, int]]
) -> None:
    windows = Windows((Run(10, 2), Run(0, 1), Run(20, 2)))
    assert windows.of(start, stop) == expected


def test_the_lowest_free_seat_is_given_out_and_comes_back_clean() -> None:
    tails = TailPool(SHAPE, engine_config(SHAPE, max_running_requests=3))
    assert [tails.take(), tails.take(), tails.take()] == [0, 1, 2]
    tails.slabs.fill_(1)
    for seat in (2, 0):
        tails.give_back(seat, used_tokens=5)
    assert not tails.slabs[:, :, 0, :, :5].any()
    assert tails.slabs[:, :, 1].all()
    assert tails.take() == 0
    assert tails.free_count == 1


def test_a_segment_is_freed_when_neither_a_pin_nor_a_reader_is_left() -> None:
    segments = Segments(Arena(SHAPE, engine_config(SHAPE, blocks=4)))
    segment = segments.allocate(130, is_pinned=True)
    assert segment is not None
    assert (segment.block_count, segments.pinned_block_count) == (3, 3)
    assert segments.allocate(65, is_pinned=True) is None
    segments.acquire(segment)
    segments.unpin(segment)
    segments.unpin(segment)
    assert segments.arena.pool.free_count == 1
    segments.release(segment)
    assert segments.arena.pool.free_count == 4
    with pytest.raises(RuntimeError, match="more often"):
        segments.release(segment)
    segments.check_integrity()
