"""Linear layers over few rows on a CPU: decode rows and the words of a question.

MKL multiplies a few rows by a large matrix at half the rate it reaches the other way round, and best where the number of
rows is a multiple of eight (docs/perf-log.md). The product is the same, summed in another order.
"""

import torch
from torch.nn import functional

_FEWEST, _MOST, _MULTIPLE = 2, 32, 8


class FewRowsLinear(torch.nn.Module):
    """Stands in for a torch.nn.Linear and shares its parameters; input [..., rows, in], output [..., rows, out]."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        flat = rows.reshape(-1, rows.shape[-1])
        count = flat.shape[0]
        if not _FEWEST <= count <= _MOST:
            return functional.linear(rows, self.weight, self.bias)
        padded = functional.pad(flat, (0, 0, 0, -count % _MULTIPLE))
        product = torch.mm(self.weight, padded.t()).t()[:count].contiguous()
        if self.bias is not None:
            product += self.bias
        return product.view(*rows.shape[:-1], -1)


def speed_up_few_rows(module: torch.nn.Module) -> None:
    """Exchange the linear layers of a model in place, where this pays: float32 on a CPU."""
    for name, child in list(module.named_modules()):
        if type(child) is torch.nn.Linear and child.weight.dtype == torch.float32 and child.weight.is_cpu:
            module.set_submodule(name, FewRowsLinear(child))
