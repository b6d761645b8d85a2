"""One forward pass over rows of different requests, packed into one line of tokens.

    decode rows (1 token each)   | prefill rows (n tokens each)
    [0 ........ decode_count)    | [first row) [second row) ...

Linear layers see the packed line [1, tokens]; attention finds out here who reads what. Built once a step, used by
every layer.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from workers.engine.arena import KEYS, VALUES, Arena, TailPool
from workers.engine.attention import Lengths, PartialAttention, merge
from workers.engine.segment import Segment


@dataclass(frozen=True, slots=True)
class Row:
    """What one request (or build) adds in this step.

    token_ids stand at positions [position, position + len). reads: segments it sees in full, oldest first. Its new KV goes
    to the end of `target`, where that is given and has room, then to the end of `overflow`, or else to its seat's tail at
    tail_length; what these hold already is visible too.
    """

    token_ids: tuple[int, ...]
    position: int
    reads: tuple[Segment, ...]
    seat: int | None = None
    tail_length: int = 0
    target: Segment | None = None
    overflow: Segment | None = None
    wants_logits: bool = True

    @property
    def target_count(self) -> int:
        """How many of its tokens go to the target."""
        return 0 if self.target is None else min(len(self.token_ids), self.target.room)

    def filled(self) -> list[tuple[int, int]]:
        """Arena ranges of all that it sees there, oldest first."""
        segments = (*self.reads, self.target, self.overflow)
        return [window for segment in segments if segment is not None for window in segment.filled()]

    @property
    def is_decode(self) -> bool:
        """One token that goes to a tail: computed together with all others of its kind."""
        return self.target is None and len(self.token_ids) == 1


@dataclass(frozen=True, slots=True)
class _SharedPart:
    """A range of the arena and the packed tokens that read it (None: all of them)."""

    start: int
    stop: int
    tokens: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _PrefillPart:
    """A prefill row: its packed tokens [start, stop), what its tail holds, and where its KV is written."""

    start: int
    stop: int
    seat: int | None
    tail_length: int
    writes: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Step:
    """The packed rows and the memory they read and write. Decode rows must come first."""

    rows: tuple[Row, ...]
    arena: Arena
    tails: TailPool
    attend: PartialAttention
    device: torch.device
    token_ids: torch.Tensor = field(init=False)
    position_ids: torch.Tensor = field(init=False)
    logit_tokens: torch.Tensor = field(init=False)
    _decode_seats: torch.Tensor = field(init=False)
    _decode_lengths: torch.Tensor = field(init=False)
    _visible: Lengths = field(init=False)
    _seat_count: int = field(init=False)
    _tail_tokens: int = field(init=False)
    _prefill: list[_PrefillPart] = field(init=False)
    _shared: list[_SharedPart] = field(init=False)

    def __post_init__(self) -> None:
        ids = [token for row in self.rows for token in row.token_ids]
        positions = [row.position + i for row in self.rows for i in range(len(row.token_ids))]
        self.token_ids = torch.tensor([ids], device=self.device)
        self.position_ids = torch.tensor([positions], device=self.device)
        starts = [0]
        for row in self.rows:
            starts.append(starts[-1] + len(row.token_ids))
        last = [starts[i + 1] - 1 for i, row in enumerate(self.rows) if row.wants_logits]
        self.logit_tokens = torch.tensor(last, dtype=torch.long, device=self.device)
        self._plan_decode()
        self._plan_prefill(starts)
        self._plan_shared(starts)

    @property
    def decode_count(self) -> int:
        return len(self._decode_seats)

    def attention(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """Write this step's KV, then attend: each row over what is its own, then over what it shares.

        query [1, heads, tokens, size]; key and value [1, kv heads, tokens, size], rotated. Returns [1, tokens, heads, size].
        """
        kv_heads, tokens, size = key.shape[1], query.shape[2], query.shape[3]
        grouped = query[0].view(kv_heads, -1, tokens, size)
        # Each token has exactly one own part, which sees at least itself: it is written here, and all others are merged in.
        out = torch.empty(grouped.shape, dtype=torch.float32, device=query.device)
        lse = torch.empty(grouped.shape[:3], dtype=torch.float32, device=query.device)
        self._write(layer, key[0], value[0])
        if self.decode_count:
            self._attend_tails(layer, grouped, out, lse, scale)
        for row in self._prefill:
            self._attend_prefill(row, layer, query, key, value, out, lse, scale)
        for part in self._shared:
            out, lse = self._attend_shared(part, layer, grouped, out, lse, scale)
        return out.permute(2, 0, 1, 3).reshape(1, tokens, -1, size).to(query.dtype)

    def _plan_decode(self) -> None:
        decode = [row for row in self.rows if row.is_decode]
        if not all(row.is_decode for row in self.rows[: len(decode)]):
            raise ValueError("decode rows must come first")
        seats = [row.seat for row in decode if row.seat is not None]
        lengths = [row.tail_length for row in decode]
        self._seat_count = max(seats, default=-1) + 1
        self._tail_tokens = max(lengths, default=-1) + 1
        self._decode_seats = torch.tensor(seats, dtype=torch.long, device=self.device)
        self._decode_lengths = torch.tensor(lengths, dtype=torch.long, device=self.device)
        # A seat between them that is not decoding sees its token 0, so that no layer has an empty tail to look after.
        visible = [1] * self._seat_count
        for seat, length in zip(seats, lengths, strict=True):
            visible[seat] = length + 1
        self._visible = Lengths(visible, self.device)

    def _plan_prefill(self, starts: list[int]) -> None:
        self._prefill = []
        for i, row in enumerate(self.rows):
            if i < self.decode_count:
                continue
            target, overflow = row.target, row.overflow
            writes = []
            if target is not None:
                writes = target.windows.of(target.length, target.length + row.target_count)
            if overflow is not None:
                beyond = len(row.token_ids) - row.target_count
                writes += overflow.windows.of(overflow.length, overflow.length + beyond)
            self._prefill.append(
                _PrefillPart(starts[i], starts[i + 1], row.seat, row.tail_length, tuple(writes))
            )

    def _plan_shared(self, starts: list[int]) -> None:
        ranges = [_joined(row.filled()) for row in self.rows]
        readers: dict[tuple[int, int], list[int]] = {}
        for i, windows in enumerate(_cut_alike(ranges)):
            for window in windows:
                readers.setdefault(window, []).extend(range(starts[i], starts[i + 1]))
        everyone = starts[-1]
        self._shared = [
            _SharedPart(
                start,
                stop,
                None
                if len(tokens) == everyone
                else torch.tensor(tokens, dtype=torch.long, device=self.device),
            )
            for (start, stop), tokens in readers.items()
        ]

    def _write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        count = self.decode_count
        for kind, fresh in ((KEYS, key), (VALUES, value)):
            if count:
                tails = self.tails.slabs[layer, kind]
                tails[self._decode_seats, :, self._decode_lengths] = fresh[:, :count].transpose(0, 1)
            for row in self._prefill:
                position = row.start
                for start, stop in row.writes:
                    size = stop - start
                    self.arena.slabs[layer, kind, :, start:stop] = fresh[:, position : position + size]
                    position += size
                if position < row.stop:
                    end = row.tail_length + row.stop - position
                    tail = self.tails.slabs[layer, kind, row.seat]
                    tail[:, row.tail_length : end] = fresh[:, position : row.stop]

    def _attend_shared(
        self,
        part: _SharedPart,
        layer: int,
        grouped: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """All rows that read a range in one call: head groups and rows are folded into the query length."""
        key = self.arena.slabs[layer, KEYS, :, part.start : part.stop].unsqueeze(0)
        value = self.arena.slabs[layer, VALUES, :, part.start : part.stop].unsqueeze(0)
        readers = grouped if part.tokens is None else grouped[:, :, part.tokens]
        kv_heads, groups, count, size = readers.shape
        part_out, part_lse = self.attend(
            readers.reshape(1, kv_heads, groups * count, size), key, value, scale=scale
        )
        part_out = part_out.reshape(kv_heads, groups, count, size).float()
        part_lse = part_lse.reshape(kv_heads, groups, count)
        if part.tokens is None:
            return merge(out, lse, part_out, part_lse)
        merged_out, merged_lse = merge(out[:, :, part.tokens], lse[:, :, part.tokens], part_out, part_lse)
        out[:, :, part.tokens], lse[:, :, part.tokens] = merged_out, merged_lse
        return out, lse

    def _attend_tails(
        self, layer: int, grouped: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, scale: float
    ) -> None:
        """Every decode row over its own tail, in one ragged call over the seats in use.

        What comes of a seat between them that is not decoding is dropped.
        """
        count, seats = self.decode_count, self._decode_seats
        kv_heads, groups, _, size = grouped.shape
        queries = grouped.new_zeros((self._seat_count, kv_heads, groups, size))
        queries[seats] = grouped[:, :, :count].permute(2, 0, 1, 3)
        tails = self.tails.slabs[layer, :, : self._seat_count, :, : self._tail_tokens]
        part_out, part_lse = self.attend(
            queries, tails[KEYS], tails[VALUES], scale=scale, lengths=self._visible
        )
        out[:, :, :count] = part_out[seats].permute(1, 2, 0, 3)
        lse[:, :, :count] = part_lse[seats].permute(1, 2, 0)

    def _attend_prefill(
        self,
        row: _PrefillPart,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        scale: float,
    ) -> None:
        """A prefill row over what its tail holds already, then causally over its own new tokens."""
        span = slice(row.start, row.stop)
        mine = query[:, :, span]
        own_out, own_lse = self.attend(mine, key[:, :, span], value[:, :, span], scale=scale, is_causal=True)
        if row.seat is not None and row.tail_length:
            tail = self.tails.slabs[layer, :, row.seat, :, : row.tail_length]
            earlier = self.attend(mine, tail[KEYS].unsqueeze(0), tail[VALUES].unsqueeze(0), scale=scale)
            own_out, own_lse = merge(own_out.float(), own_lse, earlier[0].float(), earlier[1])
        shape = out[:, :, span].shape
        out[:, :, span] = own_out[0].reshape(shape)
        lse[:, :, span] = own_lse[0].reshape(shape[:3])


def _joined(windows: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Neighbouring ranges as one: attention makes one call a range."""
    joined: list[tuple[int, int]] = []
    for start, stop in windows:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def _cut_alike(ranges: list[list[tuple[int, int]]]) -> list[list[tuple[int, int]]]:
    """Cut each range where any other begins or ends within it, so that what rows share is one range for all of them."""
    borders = sorted({border for windows in ranges for window in windows for border in window})
    cut: list[list[tuple[int, int]]] = []
    for windows in ranges:
        pieces: list[tuple[int, int]] = []
        for start, stop in windows:
            inside = borders[bisect_left(borders, start) : bisect_right(borders, stop)]
            pieces += pairwise(inside)
        cut.append(pieces)
    return cut
