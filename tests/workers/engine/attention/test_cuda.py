"""The kernels for CUDA, as far as a machine without a GPU can tell: how ops are called, and what is made of their answers.

What the ops themselves compute is tested on a GPU, in tests/gpu.
"""

import pytest
import torch

from tests.fakes import cuda_ops
from tests.fakes.varlen_attn import varlen_attn
from workers.engine.attention import cuda
from workers.engine.attention.choice import choose_among
from workers.engine.attention.contract import Role
from workers.engine.attention.plain import PLAIN
from workers.engine.attention.varlen import tail_kernel

CPU = torch.device("cpu")
SHORT = [torch.float16, torch.bfloat16]


@pytest.fixture
def ops_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "_flash", cuda_ops.flash)
    monkeypatch.setattr(cuda, "_efficient", cuda_ops.efficient)
    monkeypatch.setattr(cuda, "varlen", tail_kernel(lambda: varlen_attn))


@pytest.mark.usefixtures("ops_answer")
@pytest.mark.parametrize("head_size", [64, 80, 128])
@pytest.mark.parametrize("dtype", SHORT)
def test_where_flash_and_varlen_are_right_they_are_used(dtype: torch.dtype, head_size: int) -> None:
    chosen = choose_among(cuda.cuda_kernels(dtype), CPU, dtype, head_size)
    assert (chosen.shared, chosen.own) == (cuda.flash, cuda.flash_causal)
    assert chosen.name == "flash+varlen"


@pytest.mark.usefixtures("ops_answer")
@pytest.mark.parametrize(("dtype", "head_size"), [(torch.float32, 64), (torch.bfloat16, 20)])
def test_where_flash_does_not_do_the_efficient_op_is_used(dtype: torch.dtype, head_size: int) -> None:
    chosen = choose_among(cuda.cuda_kernels(dtype), CPU, dtype, head_size)
    assert (chosen.shared, chosen.own) == (cuda.efficient, cuda.efficient_causal)


@pytest.mark.parametrize("dtype", [torch.float32, *SHORT])
def test_where_no_op_answers_plain_torch_is_used_and_the_log_says_so(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """On a CPU the real ops raise: as they do on a GPU that they were not built for."""
    with caplog.at_level("INFO"):
        chosen = choose_among(cuda.cuda_kernels(dtype), CPU, dtype, 64)
    assert chosen == PLAIN
    refused = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(refused) == len(cuda.cuda_kernels(dtype))
    assert all("is not used for" in each and "fails in" in each for each in refused)
    assert caplog.messages[-1].endswith(": shared plain, own plain, tails plain")


@pytest.mark.parametrize("role", [Role.SHARED, Role.OWN])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_calls_fit_the_ops_of_this_torch(role: Role, dtype: torch.dtype) -> None:
    """On tensors without numbers: torch checks arguments, and gives the shapes of the answers."""
    tokens = 5 if role is Role.OWN else 300
    query = torch.empty(1, 6, 5, 64, dtype=dtype, device="meta")
    key = torch.empty(1, 2, tokens, 64, dtype=dtype, device="meta")
    for each, name, kernel in cuda.cuda_kernels(dtype):
        if each is role:
            out, lse = kernel(query, key, key, 0.125)  # type: ignore[call-arg]
            assert (out.shape, lse.shape) == (query.shape, query.shape[:3]), name
