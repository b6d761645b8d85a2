"""What a number format costs in answers: how often the likeliest next token is that of float32, given the same text."""

from pathlib import Path

import torch

from workers.engine.model import Model

AGREEMENT_TOKENS = 2000


def agreement_with_float32(model: Model, folder: Path, token_ids: list[int]) -> float:
    """The share of positions, teacher-forced, at which both choose the same token."""
    reference = Model.load(folder, device=torch.device("cpu"), dtype=torch.float32)
    expected, actual = (each.plain_forward(token_ids).argmax(-1).cpu() for each in (reference, model))
    return float((expected == actual).float().mean())
