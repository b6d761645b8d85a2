"""KV is copied from and to a GPU while it computes: neither side may run ahead of the other."""

from pathlib import Path

import pytest
import torch

from tests.workers.engine.driving import engine_config
from workers.engine.arena import Arena
from workers.engine.config import ModelShape
from workers.engine.keys import root_key
from workers.engine.tiers.disk_store import DiskStore
from workers.engine.tiers.host_store import HostStore
from workers.engine.tiers.manifest import KvFormat, Manifest

pytestmark = pytest.mark.gpu

SHAPE = ModelShape(layers=2, kv_heads=2, head_size=64, context_tokens=4096)
TOKENS = 640
_BUSY_CYCLES = 200_000_000  # a tenth of a second or more


@pytest.fixture
def arena(cuda: torch.device) -> Arena:
    return Arena(SHAPE, engine_config(SHAPE, blocks=40, device=cuda))


def write_late(arena: Arena, windows: list[tuple[int, int]], seed: int) -> torch.Tensor:
    """Have the GPU write KV after a while; gives what will be there."""
    torch.manual_seed(seed)
    fresh = torch.randn((*arena.slabs.shape[:3], TOKENS, SHAPE.head_size), device=arena.slabs.device)
    torch.cuda._sleep(_BUSY_CYCLES)  # type: ignore[no-untyped-call]
    position = 0
    for start, stop in windows:
        arena.slabs[:, :, :, start:stop] = fresh[:, :, :, position : position + stop - start]
        position += stop - start
    return fresh


def read(arena: Arena, windows: list[tuple[int, int]]) -> torch.Tensor:
    return torch.cat([arena.slabs[:, :, :, start:stop] for start, stop in windows], dim=3)


@pytest.mark.trap("T34")
def test_host_memory_gets_what_is_computed_and_gives_it_back(arena: Arena) -> None:
    store = HostStore(SHAPE, engine_config(SHAPE, device=arena.slabs.device), 40 * arena.block_bytes)
    place = store.segments.allocate(TOKENS // 64)
    assert place is not None
    first, second = [(0, 320), (640, 960)], [(1280, 1280 + TOKENS)]
    fresh = write_late(arena, first, seed=1)
    store.write(place, arena.slabs, first)
    last_reader = write_late(arena, second, seed=2)
    copied = read(arena, second)  # queued before the blocks are filled again
    store.read_into(place, arena.slabs, second)
    assert torch.equal(copied, last_reader)
    assert torch.equal(read(arena, second), fresh)


@pytest.mark.trap("T34")
def test_a_file_gets_what_is_computed_and_gives_it_back(arena: Arena, tmp_path: Path) -> None:
    form = KvFormat.of("model", torch.float32, SHAPE)
    disk = DiskStore(tmp_path / "kv", form, limit_bytes=1 << 30, incarnation="test")
    disk.scan()
    root = root_key(b"", "model", torch.float32, SHAPE)
    manifest = Manifest.of(
        form, root=root, parent=root, position=0, token_ids=tuple(range(TOKENS)), born_at=0
    )
    first, second = [(0, 320), (640, 960)], [(1280, 1280 + TOKENS)]
    fresh = write_late(arena, first, seed=1)
    file = disk.write(manifest, arena.slabs, first)
    last_reader = write_late(arena, second, seed=2)
    copied = read(arena, second)
    disk.read_into(file, arena.slabs, second)
    assert torch.equal(copied, last_reader)
    assert torch.equal(read(arena, second), fresh)
