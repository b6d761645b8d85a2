"""On a GPU: the kernels that are chosen there are right, in every role, format and head size."""

import math

import pytest
import torch

from tests.workers.engine.attention.textbook import assert_close, random, textbook
from workers.engine.attention import Lengths, choose_backend, merge
from workers.engine.attention.contract import Backend
from workers.engine.attention.plain import plain_attention

pytestmark = pytest.mark.gpu

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
HEAD_SIZES = [64, 80, 128]
# Of out, for values of some units, and of the log-sum-exp.
OUT = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-4}
LSE = {torch.float16: 2e-3, torch.bfloat16: 2e-3, torch.float32: 1e-4}


class Scene:
    def __init__(self, device: torch.device, dtype: torch.dtype, head_size: int) -> None:
        self.device, self.dtype, self.size = device, dtype, head_size
        self.scale = head_size**-0.5
        self.attend: Backend = choose_backend(device, dtype, head_size)

    def random(self, *size: int, seed: int = 0) -> torch.Tensor:
        return random(*size, self.size, seed=seed).to(self.device, self.dtype)

    def assert_right(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        counts: tuple[int, ...] | None = None,
        *,
        is_causal: bool = False,
    ) -> None:
        lengths = None if counts is None else Lengths(counts, self.device)
        part = self.attend(query, key, value, scale=self.scale, lengths=lengths, is_causal=is_causal)
        parts = [each.cpu() for each in (query, key, value)]
        expected = textbook(*parts, scale=self.scale, counts=counts, is_causal=is_causal)
        assert_close(part, expected, out=OUT[self.dtype], lse=LSE[self.dtype])


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    chosen: torch.dtype = request.param
    return chosen


@pytest.fixture(params=HEAD_SIZES)
def scene(request: pytest.FixtureRequest, cuda: torch.device, dtype: torch.dtype) -> Scene:
    return Scene(cuda, dtype, request.param)


def test_in_short_formats_flash_and_varlen_are_chosen(scene: Scene) -> None:
    """From Ampere on, with a torch whose varlen_attn does. Where this fails the log says what is wrong with them."""
    if scene.dtype != torch.float32 and torch.cuda.get_device_capability(scene.device) >= (8, 0):
        assert scene.attend.name == "flash+varlen"


@pytest.mark.parametrize(("rows", "tokens"), [(4, 8192), (1, 1), (33, 700), (256, 130), (129, 65)])
def test_a_run_read_by_rows_of_many_requests(scene: Scene, rows: int, tokens: int) -> None:
    slabs = scene.random(2, 1, 2, tokens + 300)[:, :, :, 200 : 200 + tokens]
    scene.assert_right(scene.random(1, 2, rows, seed=1), *slabs)


def test_a_tail_read_by_a_chunk_of_prefill(scene: Scene) -> None:
    slabs = scene.random(2, 1, 2, 512)[:, :, :, :77]
    scene.assert_right(scene.random(1, 50, 8, seed=1).transpose(1, 2)[:, :, 3:40], *slabs)


@pytest.mark.parametrize("tokens", [1, 15, 128, 333])
def test_new_tokens_over_themselves(scene: Scene, tokens: int) -> None:
    query = scene.random(1, tokens + 9, 8).transpose(1, 2)[:, :, 5 : 5 + tokens]
    key, value = (
        scene.random(1, tokens + 9, 2, seed=seed).transpose(1, 2)[:, :, 5 : 5 + tokens] for seed in (1, 2)
    )
    scene.assert_right(query, key, value, is_causal=True)


@pytest.mark.parametrize("counts", [(1,), (256,), (5, 1, 200, 17, 64, 65, 63), (0, 3, 0, 200), (0, 0)])
def test_tails_of_every_length(scene: Scene, counts: tuple[int, ...]) -> None:
    slabs = scene.random(2, len(counts) + 2, 2, 256)[:, : len(counts), :, : max(*counts, 1)]
    scene.assert_right(scene.random(len(counts), 2, 4, seed=1), slabs[0], slabs[1], counts)


def test_as_many_requests_as_run_at_once(scene: Scene) -> None:
    counts = tuple(1 + seat * 37 % 120 for seat in range(64))
    slabs = scene.random(2, 64, 2, 128)[:, :, :, :120]
    scene.assert_right(scene.random(64, 2, 4, seed=1), slabs[0], slabs[1], counts)


def test_nothing_outside_a_run_is_read(scene: Scene) -> None:
    """Not even numbers that are none, as memory that was given back may hold."""
    slabs = scene.random(2, 1, 2, 500)
    inside = slabs[:, :, :, 200:377].clone()
    slabs.fill_(math.nan)
    slabs[:, :, :, 200:377] = inside
    scene.assert_right(scene.random(1, 2, 12, seed=1), *slabs[:, :, :, 200:377])


def test_a_long_prefix_a_short_suffix_and_nothing_merge_to_the_whole(scene: Scene) -> None:
    key, value = scene.random(1, 2, 3000, seed=1), scene.random(1, 2, 3000, seed=2)
    query = scene.random(1, 2, 4)
    out, lse = torch.zeros_like(query).float(), torch.full(query.shape[:3], -math.inf, device=scene.device)
    for start, stop in ((0, 0), (0, 2900), (2900, 2900), (2900, 2990), (2990, 3000)):
        part_out, part_lse = scene.attend(
            query, key[:, :, start:stop], value[:, :, start:stop], scale=scene.scale
        )
        out, lse = merge(out, lse, part_out.float(), part_lse)
    expected = textbook(query.cpu(), key.cpu(), value.cpu(), scale=scene.scale)
    assert_close((out, lse), expected, out=OUT[scene.dtype], lse=LSE[scene.dtype])


def test_the_oracle_is_right_here_too(scene: Scene) -> None:
    """It is computed in float32 on the device, where a setting could make products shorter."""
    query, slabs = scene.random(1, 2, 4), scene.random(2, 1, 2, 1000, seed=1)
    part = plain_attention(query.float(), *slabs.float(), scale=scene.scale)
    expected = textbook(query.float().cpu(), *slabs.float().cpu(), scale=scene.scale)
    assert_close(part, expected, out=1e-4, lse=1e-4)
