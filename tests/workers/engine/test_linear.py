"""A linear layer gives the same for few rows as for many, whatever way the product is taken."""

import pytest
import torch

from workers.engine.linear import FewRowsLinear, speed_up_few_rows


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 8, 9, 31, 32, 33])
def test_few_rows_give_what_a_linear_layer_gives(rows: int, has_bias: bool) -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(48, 80, bias=has_bias)
    packed = torch.randn(1, rows, 48)
    actual = FewRowsLinear(linear)(packed)
    torch.testing.assert_close(actual, linear(packed), atol=1e-5, rtol=1e-5)
    assert actual.shape == (1, rows, 80)
    assert actual.is_contiguous()


def test_parameters_are_shared_and_ties_stay() -> None:
    model = torch.nn.ModuleDict(
        {"embedding": torch.nn.Embedding(32, 16), "head": torch.nn.Linear(16, 32, bias=False)}
    )
    model["head"].weight = model["embedding"].weight
    speed_up_few_rows(model)
    assert isinstance(model["head"], FewRowsLinear)
    assert model["head"].weight is model["embedding"].weight


def test_other_number_formats_keep_their_layers() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8)).to(torch.bfloat16)
    speed_up_few_rows(model)
    assert type(model[0]) is torch.nn.Linear
