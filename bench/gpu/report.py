"""What was seen of one model, as lines for people."""

from collections.abc import Mapping

from bench.gpu.measure import Seen


def lines(name: str, seen: Seen) -> list[str]:
    """Columns are backends, rows what was measured of them, in milliseconds."""
    backends = list(seen.times)
    table = [f"{name:<34}" + "".join(f"{backend:>16}" for backend in backends)]
    for title, field in (
        ("prefill of {} tokens, ms", "prefill_s"),
        ("hit behind {} tokens, ms", "hit_s"),
        ("step of {} requests, ms", "decode_s"),
    ):
        by_backend = [getattr(seen.times[backend], field) for backend in backends]
        for size in dict.fromkeys(size for each in by_backend for size in each):
            cells = "".join(f"{_milliseconds(each, size):>16}" for each in by_backend)
            table.append(f"  {title.format(size):<32}{cells}")
    table += [f"  {pair}: logits differ by {error:.2g} of the largest" for pair, error in seen.errors.items()]
    table += [f"  left out: {why}" for why in seen.left_out]
    return [*table, f"  {'right' if seen.is_right else 'WRONG'}"]


def _milliseconds(times: Mapping[int, float], size: int) -> str:
    return f"{times[size] * 1000:.2f}" if size in times else "–"
