"""The plots of a statement. Amounts become floats here and nowhere else: a drawing is looked at, its figures stand in the tables."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from markupsafe import Markup
from matplotlib.figure import Figure

from billing.meters import Meter
from billing.money import NANO_USD
from billing.report import Sums
from billing.statement import TOP_CACHES, Statement, add_up
from cli.billing.statement import words
from cli.billing.statement.axes import label_days, label_usd
from cli.billing.statement.drawing import COLOURS, FAINT, HATCHES, INK, LOST, SAVED, draw

_BAR = 0.8
_LABEL_SIGNS = 30
_LEGEND: Final = "outside upper left"
# Where caching lost: hatched, so that it is seen without colour too.
_LOSS: dict[str, Any] = {"facecolor": LOST, "edgecolor": "white", "hatch": "////", "linewidth": 0}


def draw_all(made: Statement) -> Iterator[tuple[str, Markup]]:
    """Draw each plot of a statement, with the sentence that goes above it; none of what would be empty."""
    has_cost = made.sums.amount_nano_usd > 0
    if has_cost or made.sums.without_cache_nano_usd:
        yield words.saving(made.sums), cumulative(made)
    if has_cost:
        yield words.largest_part(made.sums), cost_per_day(made)
    if has_cost or made.sums.without_cache_nano_usd:
        yield words.days_that_paid(made), savings_per_day(made)
    if any(sums.amount_nano_usd or sums.without_cache_nano_usd for sums in made.caches.values()):
        yield words.caches_that_cost(made), top_caches(made)


def cumulative(made: Statement) -> Markup:
    """What the month has cost by the end of each day, and what it would have without any cache."""
    charged, without = [0], [0]
    for day in made.days_so_far:
        charged.append(charged[-1] + made.days[day].amount_nano_usd)
        without.append(without[-1] + made.days[day].without_cache_nano_usd)

    def plot(figure: Figure) -> None:
        axes = figure.add_subplot()
        ends = [
            number + 0.5 for number in range(len(charged))
        ]  # of the days: a bar's right edge in the other plots
        paid, other = _floats(charged), _floats(without)
        is_saved = [more >= less for more, less in zip(other, paid, strict=True)]
        is_lost = [more <= less for more, less in zip(other, paid, strict=True)]
        axes.fill_between(
            ends, paid, other, where=is_saved, interpolate=True, color=SAVED, alpha=0.25, linewidth=0
        )
        axes.fill_between(ends, paid, other, where=is_lost, interpolate=True, alpha=0.5, **_LOSS)
        dashes: dict[str, Any] = {"color": FAINT, "linestyle": (0, (5, 2)), "linewidth": 1.6}
        axes.plot(ends, other, label=f"Without any cache: {words.about_usd(without[-1])} USD", **dashes)
        axes.plot(ends, paid, label=f"As charged: {words.about_usd(charged[-1])} USD", color=INK, linewidth=2)
        label_days(axes, made)
        label_usd(axes.yaxis, "USD since the month began")
        axes.set_ylim(bottom=0)
        figure.legend(loc=_LEGEND, ncols=2)

    text = "Two lines from the first day on: what was charged, and what the same would have cost without any cache."
    return draw("cumulative", words.saving(made.sums), text, 2.5, plot)


def cost_per_day(made: Statement) -> Markup:
    """The cost of each day, one bar, stacked by meter."""
    days = made.days_so_far

    def plot(figure: Figure) -> None:
        axes = figure.add_subplot()
        bottom = [0.0] * len(days)
        numbers = [day.day for day in days]
        for meter in _used(made.sums):
            heights = _floats(made.days[day].lines[meter].amount_nano_usd for day in days)
            axes.bar(numbers, heights, _BAR, bottom, **_paint(meter))
            bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
        label_days(axes, made)
        label_usd(axes.yaxis, "USD a day")
        figure.legend(loc=_LEGEND, ncols=3)

    dearest = max(days, key=lambda day: made.days[day].amount_nano_usd)
    most = words.about_usd(made.days[dearest].amount_nano_usd)
    text = f"A bar for each day, of what each meter cost. The dearest day is {dearest}, with {most} USD."
    return draw("cost", words.largest_part(made.sums), text, 2.8, plot)


def savings_per_day(made: Statement) -> Markup:
    """What caching saved on each day: below zero where it cost more."""
    days = made.days_so_far

    def plot(figure: Figure) -> None:
        axes = figure.add_subplot()
        numbers = [day.day for day in days]
        saved = _floats(made.days[day].saved_nano_usd for day in days)
        lost = [min(each, 0.0) for each in saved]
        if any(each > 0 for each in saved) or not any(lost):
            axes.bar(numbers, [max(each, 0.0) for each in saved], _BAR, color=SAVED, label="Saved")
        if any(lost):
            axes.bar(numbers, lost, _BAR, label="Cost more than it saved", **_LOSS)
        axes.axhline(0, color=INK, linewidth=0.8)
        label_days(axes, made)
        label_usd(axes.yaxis, "USD a day")
        figure.legend(loc=_LEGEND, ncols=2)

    text = "A bar for each day: upwards what caching saved, downwards what it cost beyond what it saved."
    return draw("savings", words.days_that_paid(made), text, 2.1, plot)


def top_caches(made: Statement) -> Markup:
    """What the dearest caches cost, by meter, and what their requests would have cost without any cache."""
    shown = list(made.caches)[:TOP_CACHES]
    sums = [made.caches[cache_id] for cache_id in shown]

    def plot(figure: Figure) -> None:
        axes = figure.add_subplot()
        left = [0.0] * len(shown)
        places = list(range(len(shown)))
        for meter in _used(add_up(sums)):
            widths = _floats(each.lines[meter].amount_nano_usd for each in sums)
            axes.barh(places, widths, 0.62, left, **_paint(meter))
            left = [start + width for start, width in zip(left, widths, strict=True)]
        without = _floats(each.without_cache_nano_usd for each in sums)
        mark: dict[str, Any] = {"s": 30, "marker": "D", "color": "white", "edgecolors": INK, "zorder": 3}
        axes.scatter(without, places, label="Without any cache", **mark)
        names = [words.cache_label(made, cache_id, _LABEL_SIGNS) for cache_id in shown]
        axes.set_yticks(places, [f"{rank}. {name}" for rank, name in enumerate(names, 1)])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x")
        label_usd(axes.xaxis, "USD in the month")
        figure.legend(loc=_LEGEND, ncols=3)

    text = (
        "A bar for each cache, the dearest first, of what it and the requests that named it cost by meter, and a mark for what "
        "the same requests would have cost without any cache: left of the bar's end, the cache cost more than it saved."
    )
    return draw("caches", words.caches_that_cost(made), text, 1.2 + 0.28 * len(shown), plot)


def _used(sums: Sums) -> list[Meter]:
    return [meter for meter, line in sums.lines.items() if line.amount_nano_usd]


def _paint(meter: Meter) -> dict[str, Any]:
    """How a meter is drawn, the same in every plot."""
    edge = {"edgecolor": "white", "linewidth": 0.4}
    return {"label": words.NAMES[meter], "facecolor": COLOURS[meter], "hatch": HATCHES.get(meter), **edge}


def _floats(nano_usd: Iterable[int]) -> list[float]:
    return [each / NANO_USD for each in nano_usd]
