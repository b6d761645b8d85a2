"""The host tier: a second arena in host memory, for KV that a device's arena has no room for."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import torch

from workers.engine.arena import Arena
from workers.engine.config import EngineConfig, ModelShape
from workers.engine.segment import Segment, Segments
from workers.engine.tiers.rate import Rate

Windows = Sequence[tuple[int, int]]


class HostStore:
    """segments: who has which of its blocks; the engine's thread gives them out. Copies may run on any one thread at a time each way.

    read_rate: bytes a second. The device's side of a copy has a stream of its own. It begins after all that the device had been told before:
    the forward that wrote these tokens, and the last reader of the blocks that are written to.
    """

    def __init__(self, shape: ModelShape, config: EngineConfig, size_bytes: int) -> None:
        host = replace(config, device=torch.device("cpu"), arena_bytes=size_bytes)
        self._device = config.device
        self._arena = Arena(shape, host, pin_memory=config.device.type == "cuda")
        self.segments = Segments(self._arena)
        self.read_rate = Rate()

    def write(self, segment: Segment, slabs: torch.Tensor, windows: Windows) -> None:
        """Copy the device arena's `windows` [start, stop) into a segment of this store, from its beginning."""
        tokens = sum(stop - start for start, stop in windows)
        self._copy(slabs, windows, self._arena.slabs, segment.windows.of(0, tokens))

    def read_into(self, segment: Segment, slabs: torch.Tensor, windows: Windows) -> None:
        """Copy a segment of this store, from its beginning, into the device arena's `windows`."""
        tokens = sum(stop - start for start, stop in windows)
        started = perf_counter()
        self._copy(self._arena.slabs, segment.windows.of(0, tokens), slabs, windows)
        token_bytes = slabs[:, :, :, 0].numel() * slabs.element_size()
        self.read_rate.observe(tokens * token_bytes, perf_counter() - started)

    def _copy(self, source: torch.Tensor, sources: Windows, target: torch.Tensor, targets: Windows) -> None:
        if self._device.type != "cuda":
            _copy_windows(source, sources, target, targets)
            return
        stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(stream):
            _copy_windows(source, sources, target, targets)
        stream.synchronize()


def _copy_windows(source: torch.Tensor, sources: Windows, target: torch.Tensor, targets: Windows) -> None:
    """Layer by layer: what is copied between devices in one call is gathered in one buffer first."""
    for begin, start, count in _pairs(sources, targets):
        for layer in range(source.shape[0]):
            target[layer, :, :, start : start + count].copy_(
                source[layer, :, :, begin : begin + count], non_blocking=True
            )


def _pairs(sources: Windows, targets: Windows) -> Iterator[tuple[int, int, int]]:
    """Where each piece begins here and there, and its tokens; both sides have equally many."""
    left, right = list(sources)[::-1], list(targets)[::-1]
    while left and right:
        (begin, end), (start, stop) = left.pop(), right.pop()
        count = min(end - begin, stop - start)
        yield begin, start, count
        if begin + count < end:
            left.append((begin + count, end))
        if start + count < stop:
            right.append((start + count, stop))
    if left or right:
        raise ValueError(f"{sources} and {targets} hold different numbers of tokens")
