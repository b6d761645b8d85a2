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


@pytest.mark.trap("T7")
def test_rows_stand_in_one_line_with_their_own_positions() -> None:
    config = engine_config(SHAPE)
    arena, tails = Arena(SHAPE, config), TailPool(SHAPE, config)
    cached = Segments(arena).allocate(2)
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


@pytest.mark.trap("T5")
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


def test_a_row_fills_its_target_and_writes_the_rest_into_its_tail() -> None:
    config = engine_config(SHAPE)
    arena, tails = Arena(SHAPE, config), TailPool(SHAPE, config)
    target = Segments(arena).allocate(1)
    assert target is not None
    target.length = 62
    row = Row((5, 6, 7, 8, 9), 62, reads=(), seat=1, target=target)
    assert (row.target_count, row.is_decode) == (2, False)
    step = Step((row,), arena, tails, plain_attention, torch.device("cpu"))
    fresh = torch.arange(2 * 5 * 8, dtype=torch.float32).reshape(1, 2, 5, 8)
    step.attention(0, torch.ones(1, 2, 5, 8), fresh, fresh, 1.0)
    begin = target.windows.of(62, 64)[0][0]
    assert torch.equal(arena.slabs[0, 0, :, begin : begin + 2], fresh[0, :, :2])
    assert torch.equal(tails.slabs[0, 1, 1, :, :3], fresh[0, :, 2:])


def test_a_segment_is_divided_at_a_block_border_and_freed_once() -> None:
    segments = Segments(Arena(SHAPE, engine_config(SHAPE, blocks=8)))
    first, gap, second = (segments.allocate(count) for count in (2, 1, 2))
    assert first is not None
    assert gap is not None
    assert second is not None
    segments.free(first)
    segments.free(second)
    whole = segments.allocate(7)
    assert whole is not None
    assert len(whole.runs) == 2
    whole.length = 200
    assert segments.allocate(1) is None
    tokens = whole.windows.of(0, 7 * 64)
    upper, lower = segments.divide(whole, 3)
    assert (upper.block_count, lower.block_count) == (3, 4)
    assert (upper.length, lower.length) == (192, 8)
    assert upper.windows.of(0, 192) + lower.windows.of(0, 256) in (tokens, _cut(tokens, 192))
    segments.check_integrity()
    for count in (0, 4):
        with pytest.raises(ValueError, match="border"):
            segments.divide(lower, count)
    segments.free(upper)
    with pytest.raises(ValueError, match="twice"):
        segments.free(upper)
    segments.free(lower)
    segments.free(gap)
    assert segments.arena.pool.free_count == 8
    segments.check_integrity()


def _cut(ranges: list[tuple[int, int]], at: int) -> list[tuple[int, int]]:
    """The same ranges, divided behind so many tokens."""
    cut: list[tuple[int, int]] = []
    for start, stop in ranges:
        middle = start + at if 0 < at < stop - start else stop
        cut += [each for each in ((start, middle), (middle, stop)) if each[0] < each[1]]
        at -= stop - start
    return cut
