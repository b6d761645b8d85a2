"""Draws follow the distribution that the parameters describe, and depend on seed and position alone."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import assume, given, strategies as st

from core.sampling import Sampling, TokenLogprobs
from workers.engine.sampling import logprobs, sample, uniform


def textbook_distribution(logits: list[float], temperature: float, top_k: int, top_p: float) -> list[float]:
    """Written out by hand: scale, keep the k likeliest, then the fewest that hold top_p, and make it sum to 1."""
    top = max(logits)
    weights = [math.exp((logit - top) / temperature) for logit in logits]
    order = sorted(range(len(logits)), key=lambda token: -weights[token])
    order = order[: top_k or None]
    total = sum(weights[token] for token in order)
    kept, held = [], 0.0
    for token in order:
        if held >= top_p and top_p < 1:
            break
        kept.append(token)
        held += weights[token] / total
    total = sum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(logits))]


@given(
    logits=st.lists(st.integers(-400, 400), min_size=1, max_size=30, unique=True).map(
        lambda numbers: [number / 50 for number in numbers]
    ),
    temperature=st.floats(0.1, 3),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.01, 1),
    seed=st.integers(-(2**63), 2**64 - 1),
    position=st.integers(0, 10**6),
)
def test_a_draw_inverts_the_textbook_distribution(
    logits: list[float], temperature: float, top_k: int, top_p: float, seed: int, position: int
) -> None:
    expected, narrower, wider = (
        textbook_distribution(logits, temperature, top_k, top_p + slack) for slack in (0, -1e-5, 1e-5)
    )
    drawn = uniform(seed, position)
    cumulative = torch.tensor(expected, dtype=torch.float64).cumsum(0)
    # On the border of what top_p keeps, or of two tokens, rounding may decide.
    assume([share > 0 for share in narrower] == [share > 0 for share in wider])
    assume((cumulative - drawn).abs().min() > 1e-5)
    token = sample(torch.tensor(logits), Sampling(temperature, top_p, top_k, seed), position)
    assert token == int((cumulative > drawn).nonzero()[0])


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(1.0, 1.0, 0, 11),
        Sampling(0.5, 1.0, 0, 12),
        Sampling(2.0, 0.9, 0, 13),
        Sampling(1.3, 1.0, 4, 14),
    ],
)
def test_tokens_are_as_frequent_as_they_are_likely(sampling: Sampling) -> None:
    logits = [0.3, 2.0, -1.0, 1.1, 0.9, -0.2]
    expected = textbook_distribution(logits, sampling.temperature, sampling.top_k, sampling.top_p)
    count = 1500
    drawn = Counter(sample(torch.tensor(logits), sampling, position) for position in range(count))
    possible = [token for token, share in enumerate(expected) if share]
    assert set(drawn) <= set(possible)
    chi_square = sum((drawn[t] - count * expected[t]) ** 2 / (count * expected[t]) for t in possible)
    assert chi_square < 20.5  # one in a thousand, for five degrees of freedom


def test_zero_temperature_takes_the_largest() -> None:
    assert sample(torch.tensor([0.1, 3.0, 2.9]), Sampling(0.0, 0.5, 3, 1), 0) == 1


@pytest.mark.parametrize("temperature", [1e-5, 1e-6, 1e-30, 1e-45, 1e-308, 5e-324])
def test_the_colder_the_greedier_without_leaving_the_numbers(temperature: float) -> None:
    logits = torch.tensor([1e4, 1e4 + 1, -1e4])
    for position in range(20):
        assert sample(logits, Sampling(temperature, 0.95, 64, 1), position) == 1


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0, 1e-9, 0, 1), Sampling(1.0, 1.0, 1, 1), Sampling(1.0, 1e-9, 1, 1)]
)
def test_the_narrowest_choice_is_greedy(sampling: Sampling) -> None:
    assert {sample(torch.tensor([0.0, 0.2, 0.1]), sampling, position) for position in range(50)} == {1}


def test_more_than_there_are_keeps_all() -> None:
    drawn = {sample(torch.zeros(3), Sampling(1.0, 1.0, 1000, 1), position) for position in range(100)}
    assert drawn == {0, 1, 2}


def test_what_is_impossible_is_never_drawn() -> None:
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    drawn = {sample(logits, Sampling(1.0, 1.0, 0, 1), position) for position in range(100)}
    assert drawn == {1, 3}


def test_numbers_never_change_for_a_seed_and_a_position() -> None:
    """A request that goes on after an upgrade draws what it would have drawn."""
    assert [uniform(7, position) for position in range(3)] == [
        0.8720734548204873,
        0.0828426870273763,
        0.014107696329258346,
    ]
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)


def test_numbers_are_spread_evenly_and_differ_by_seed_and_by_position() -> None:
    numbers = [uniform(seed, position) for seed in range(-20, 20) for position in range(50)]
    assert len(set(numbers)) == len(numbers)
    assert all(0 <= number < 1 for number in numbers)
    tenths = Counter(int(number * 10) for number in numbers)
    assert sum((tenths[i] - 200) ** 2 / 200 for i in range(10)) < 27.9  # one in a thousand, nine degrees
    in_pairs = sum(a * b for a, b in itertools.pairwise(numbers)) / (len(numbers) - 1)
    assert abs(in_pairs - 0.25) < 0.02


@pytest.mark.parametrize("sampling", [Sampling(0.0, 1.0, 0, 1), Sampling(1.0, 0.95, 64, 1)])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_no_number_chooses_nothing(sampling: Sampling, number: float) -> None:
    for logits in ([number] * 5, [0.0, number, 1.0]):
        with pytest.raises(ArithmeticError):
            sample(torch.tensor(logits), sampling, 0)


@pytest.mark.parametrize(
    ("presence", "frequency", "answer", "chosen"),
    [
        (0.0, 0.0, [2, 2, 2], 2),
        (0.9, 0.0, [2, 2, 2], 2),
        (1.1, 0.0, [2], 1),
        (0.0, 0.4, [2, 2], 2),
        (0.0, 0.4, [2, 2, 2], 1),
        (0.5, 0.3, [2, 2], 1),
        (1.1, 0.0, [2, 1], 2),
        (-2.0, 0.0, [0], 0),
        (0.0, -1.0, [1, 1], 1),
        (2.0, 2.0, [], 2),
    ],
)
def test_penalties_take_off_what_was_said_already_once_and_per_occurrence(
    presence: float, frequency: float, answer: list[int], chosen: int
) -> None:
    logits = torch.tensor([1.5, 2.0, 3.0])
    greedy = Sampling(0.0, 1.0, 0, 1, presence, frequency)
    assert sample(logits, greedy, 0, answer) == chosen
    narrowest = Sampling(1.0, 1.0, 1, 1, presence, frequency)
    assert sample(logits, narrowest, 0, answer) == chosen
    assert logits.tolist() == [1.5, 2.0, 3.0], "the model's own logits were changed"


def test_logprobs_are_the_models_own_and_ranked() -> None:
    logits = torch.tensor([0.0, 2.0, 1.0])
    total = math.exp(0) + math.exp(2) + math.exp(1)
    found = logprobs(logits, 2, 2)
    assert found.chosen == pytest.approx(1 - math.log(total), abs=1e-6)
    assert [token_id for token_id, _ in found.top] == [1, 2]
    assert [value for _, value in found.top] == pytest.approx(
        [2 - math.log(total), 1 - math.log(total)], abs=1e-6
    )
    assert logprobs(logits, 2, 0).top == ()
    assert len(logprobs(logits, 2, 20).top) == 3


def test_what_is_impossible_is_among_no_likeliest() -> None:
    assert logprobs(torch.tensor([-math.inf, 0.0, -math.inf]), 1, 3) == TokenLogprobs(0.0, ((1, 0.0),))
