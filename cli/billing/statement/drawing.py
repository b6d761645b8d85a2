"""How a statement's plots look, and how they become SVG inside a page: the same figures give the same bytes, on any machine."""

import re
import warnings
from collections.abc import Callable
from html import escape
from io import StringIO
from typing import Any

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from billing.meters import Meter

INK = "#22303c"
FAINT = "#8795a1"
SAVED = "#3d7ea6"
LOST = "#d1495b"
WEEKEND = "#eef1f4"
# Neighbours in a stack differ in lightness, and some are hatched: they are told apart without colour too.
COLOURS = {
    Meter.CACHE_WRITE_TOKENS: "#0b3954",
    Meter.CACHE_STORAGE_TOKEN_SECONDS: "#f2a541",
    Meter.CACHE_READ_TOKENS: "#2f8a6b",
    Meter.IMPLICIT_CACHE_READ_TOKENS: "#a8dcc5",
    Meter.INPUT_TOKENS: "#5f1a3d",
    Meter.OUTPUT_TOKENS: "#c9b6e4",
}
HATCHES = {Meter.IMPLICIT_CACHE_READ_TOKENS: r"\\\\", Meter.OUTPUT_TOKENS: "////"}
WIDTH_INCHES = 7.2  # what A4 leaves between its margins
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud, and shown in the page's font
    "svg.hashsalt": "headstart",
    "text.parse_math": False,  # a dollar in a name is a dollar
    "font.family": ["DejaVu Sans"],  # comes with matplotlib, so that everything is measured alike everywhere
    "font.size": 8,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#d9dfe5",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.6,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
_UNDATED = {"Date": None, "Creator": None, "Format": None, "Type": None}


def draw(
    name: str, title: str, description: str, height_inches: float, plot: Callable[[Figure], None]
) -> Markup:
    """Give a plot as an SVG element for a page, with a title and a description for those who do not see it.

    name: unique in the page. Whatever configures matplotlib on this machine has no effect, and is left as it was.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        # A sign that the measuring font lacks is drawn by the reader's, which may have it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        plot(figure)
        written = StringIO()
        figure.savefig(written, format="svg", metadata=_UNDATED, transparent=True)
    return _inline(written.getvalue(), name, title, description)


def _inline(svg: str, name: str, title: str, description: str) -> Markup:
    """Make an SVG file an element: ids of its own, no name spaces, a size that the page decides."""
    opening, _, content = svg[svg.index("<svg") :].partition(">")
    box = re.search(r'viewBox="([-0-9. ]+)"', opening)
    assert box is not None, "matplotlib writes a viewBox"
    # Attributes alone: what is text between tags stays as it is.
    content = re.sub(r"<[^>]*>", lambda tag: _with_own_ids(tag[0], name), content)
    return Markup(  # noqa: S704 - escaped here, or by matplotlib
        f'<svg role="img" viewBox="{box[1]}" aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-text">{escape(description)}</desc>{content}'
    )


def _with_own_ids(tag: str, name: str) -> str:
    tag = tag.replace("xlink:href=", "href=")
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", tag)
