"""What is checked and timed of one model, backend by backend."""

import gc
import logging
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch

from bench.gpu.budget import Budget, OutOfTime
from bench.gpu.rig import Rig, config_for
from bench.gpu.shapes import Plan, Shape, random_model
from workers.engine.attention import choose_backend
from workers.engine.attention.plain import PLAIN
from workers.engine.segment import Segment

log = logging.getLogger(__name__)

_WARM_UP = 3
# Of the largest logit: rounding of one format, summed in another order through all layers.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}


@dataclass(slots=True)
class Times:
    """Seconds: prefill and hit by tokens of the prefix, a step of decode by requests. What is missing was left out."""

    prefill_s: dict[int, float] = field(default_factory=dict)
    hit_s: dict[int, float] = field(default_factory=dict)
    decode_s: dict[int, float] = field(default_factory=dict)


@dataclass(slots=True)
class Seen:
    """Of one model. errors: differences of last logits, of the largest; times by backend; left_out: what was not done, and why."""

    errors: dict[str, float] = field(default_factory=dict)
    times: dict[str, Times] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    is_right: bool = True


def measure(shape: Shape, plan: Plan, device: torch.device, dtype: torch.dtype, budget: Budget) -> Seen:
    """The backend that is chosen here first, then plain torch, as far as time and memory go."""
    seen = Seen()
    if why := does_not_fit(shape, device, dtype):
        seen.left_out.append(why)
        return seen
    with noting(seen, "all"):
        budget.check()
        model = random_model(shape, plan, device, dtype)
        chosen = choose_backend(device, dtype, shape.head_size)
        rig = Rig(model, plan, config_for(model.shape, plan, device, dtype), chosen, budget)
        backends = {each.name: each for each in (chosen, PLAIN)}
        for what, action in (
            ("comparison", partial(compare, tolerance=TOLERANCE[dtype])),
            ("times", take_times),
        ):
            for backend in backends.values():
                rig.attend = backend
                with noting(seen, f"{what} of {backend.name}"):
                    action(rig, plan, backend.name, seen)
    return seen


@contextmanager
def noting(seen: Seen, what: str) -> Iterator[None]:
    """Whatever breaks is a result, and the rest is measured all the same: nobody may be there to start again."""
    try:
        yield
    except OutOfTime:
        seen.left_out.append(f"{what}: no time left")
    except torch.OutOfMemoryError:
        torch.cuda.empty_cache()
        seen.left_out.append(f"{what}: not enough memory")
    except Exception as error:
        log.exception("%s failed", what)
        seen.left_out.append(f"{what}: {type(error).__name__}: {error}")
        seen.is_right = False


def does_not_fit(shape: Shape, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why not, where a GPU is too small for the weights and half as much again for KV and what a step needs."""
    if device.type != "cuda":
        return None
    gc.collect()  # the model before it
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    needed = shape.weight_count * dtype.itemsize * 3 // 2
    return (
        None if needed <= free else f"needs {needed / 1e9:.0f} GB of memory, and {free / 1e9:.0f} GB are free"
    )


def compare(rig: Rig, plan: Plan, name: str, seen: Seen, *, tolerance: float) -> None:
    """A hit against the same text without a cache, and both against transformers' own attention."""
    text, question = rig.tokens(plan.parity_tokens, seed=1), rig.tokens(plan.question_tokens, seed=2)
    with rig.room(len(text)) as prefix, rig.room(len(text) + len(question)) as whole:
        rig.prefill(text, prefix)
        hit = rig.ask(question, prefix)
        cold = rig.prefill((*text, *question), whole)
    reference = rig.model.plain_forward([*text, *question])[-1]
    for pair, actual, expected in (
        ("hit against no cache", hit, cold),
        ("hit against transformers", hit, reference),
        ("no cache against transformers", cold, reference),
    ):
        error = float((actual - expected).abs().max() / expected.abs().max())
        seen.errors[f"{name}: {pair}"] = error
        seen.is_right = seen.is_right and error <= tolerance  # a NaN is not


def take_times(rig: Rig, plan: Plan, name: str, seen: Seen) -> None:
    """Prefill once, hits and steps of decode as medians; the first of each kind warms up."""
    times = seen.times[name] = Times()
    question = rig.tokens(plan.question_tokens, seed=3)
    with rig.room(plan.chunk_tokens) as warm_up:
        rig.prefill(rig.tokens(plan.chunk_tokens, seed=4), warm_up)
    for count in plan.prefixes:
        text = rig.tokens(count, seed=count)
        with rig.room(count) as prefix:
            began = time.perf_counter()
            rig.prefill(text, prefix)
            times.prefill_s[count] = time.perf_counter() - began
            times.hit_s[count] = statistics.median(hits(rig, plan, prefix, question)[_WARM_UP:])
            if count == plan.prefixes[0]:
                for width in plan.widths:
                    steps = rig.decode(prefix, width, _WARM_UP + plan.repetitions)
                    times.decode_s[width] = statistics.median(steps[_WARM_UP:])


def hits(rig: Rig, plan: Plan, prefix: Segment, question: tuple[int, ...]) -> list[float]:
    """Seconds from a question to its first token."""
    times = []
    for _ in range(_WARM_UP + plan.repetitions):
        began = time.perf_counter()
        rig.ask(question, prefix).argmax().item()
        times.append(time.perf_counter() - began)
    return times
