"""The axes that plots of a statement share: days as days, amounts in USD."""

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from billing.report_json import zone_name
from billing.statement import Statement
from cli.billing.statement.drawing import WEEKEND

_SATURDAY = 5


def label_days(axes: Axes, made: Statement) -> None:
    """Give the whole month, a number for each day, whether or not it has come; weekends lie on a shade."""
    days = list(made.days)
    for day in days:
        if day.weekday() >= _SATURDAY:
            axes.axvspan(day.day - 0.5, day.day + 0.5, color=WEEKEND, linewidth=0, zorder=0)
    axes.set_xticks([day.day for day in days])
    axes.tick_params(axis="x", length=0, labelsize=7)
    axes.set_xlim(0.5, len(days) + 0.5)
    axes.set_xlabel(f"Day of {days[0]:%B %Y}, {zone_name(made.total.query)} (weekends shaded)")


def label_usd(axis: Axis, text: str) -> None:
    """Give amounts whole, neither as powers of ten nor as an offset."""
    axis.set_major_locator(MaxNLocator(5))
    formatter = ScalarFormatter(useOffset=False)
    formatter.set_scientific(False)
    axis.set_major_formatter(formatter)
    axis.set_label_text(text)
