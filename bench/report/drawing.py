"""How the report's plots are drawn: matplotlib's SVG, in the page's own font and colours.

Text stays text. What is drawn in a stand-in colour becomes the page's: `currentColor` for text and
axes, the variables --s0, --s1, … for series, whose values for light and dark, apart for the
colour-blind too, are in page.css.
"""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.report.table import Plot

STYLE = Path(__file__).parent / "page.css"
WIDE, NARROW = 900, 340  # CSS pixels, a unit of the SVG each
INK = "#010203"
GREY = "s7"  # the series colour of what is not a contender: remainders and the like
SERIES = {f"s{i}": f"#f0f0{i:02x}" for i in range(8)}

# One colour and marker for one name throughout the report.
NAMES = {
    "assay": ("s0", "o"),
    "assay fast": ("s5", "v"),
    "llama.cpp": ("s1", "s"),
    "transformers": ("s2", "^"),
    "numpy": ("s3", "D"),
    "torch": ("s4", "v"),
    "generic": ("s0", "o"),
    "avx512_vnni": ("s1", "s"),
    "amx": ("s2", "^"),
    "avx2": ("s5", "v"),
    "avx512": ("s4", "D"),
    "avx512_bf16": ("s3", "h"),
    "amx_bf16": ("s2", "p"),
    "lut_avx512": ("s6", "*"),
    "lut_avx2": ("s6", "X"),
    "scalar": (GREY, "P"),
    "remainder": (GREY, "o"),
}
MARKERS = "osD^vP*X"
SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.labelsize": 12,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "xtick.major.pad": 6,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.borderaxespad": 0,
    "legend.columnspacing": 1.6,
    "figure.dpi": 72,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.linewidth": 0.8,
    "grid.linewidth": 0.8,
    "grid.alpha": 0.15,
    "lines.linewidth": 1.6,
    "errorbar.capsize": 2.5,
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color",
         "ytick.color", "grid.color"), INK,
    ),
}  # fmt: skip


def look(name: str, position: int = 0) -> tuple[str, str]:
    """Colour and marker of a name, or of a position where the name has none."""
    series, marker = NAMES.get(name, (f"s{position % 7}", MARKERS[position % len(MARKERS)]))
    return SERIES[series], marker


def label(name: str) -> str:
    """A contender as it is written."""
    return {"assay": "Assay", "assay fast": "Assay, fast"}.get(name, name)


def drawn(
    anchor: str, caption: str, draw: Callable[[Any, bool], None], heights: tuple[float, float]
) -> Plot:
    """A plot by `draw(figure, wide)`, so many pixels high on a desk and on a phone."""
    wide = svg(f"{anchor}-w", lambda figure: draw(figure, True), WIDE, heights[0])
    narrow = svg(f"{anchor}-n", lambda figure: draw(figure, False), NARROW, heights[1])
    return Plot(anchor, caption, wide, narrow)


def svg(name: str, draw: Callable[[Any], None], width: float, height: float) -> str:
    """What `draw(figure)` draws, as an <svg> element whose ids begin with `name`."""
    with _settings(name) as figures:
        figure = figures(figsize=(width / 72, height / 72))
        draw(figure)
        file = io.StringIO()
        empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=empty)
    return _for_page(file.getvalue(), name)


def standalone(drawing: str) -> str:
    """A page's <svg> as a file of its own, in the page's colours by light."""
    colours = re.search(r":root \{.*?\}", STYLE.read_text(), re.DOTALL)
    assert colours
    style = "svg { color: var(--ink); background: var(--paper); font-family: sans-serif; }"
    head = '<svg xmlns="http://www.w3.org/2000/svg"'
    return drawing.replace("<svg", head, 1).replace(
        ">", f">\n<style>\n{colours[0]}\n{style}\n</style>", 1
    )


def axes_at(figure: Any, left: float, top: float, width: float, height: float) -> Any:
    """Axes at a place in pixels, from the upper left corner. (Matplotlib's own layouts measure
    text in a font that the page does not have, and take their time for it.)"""
    whole_width, whole_height = 72 * figure.get_size_inches()
    bottom = 1 - (top + height) / whole_height
    return figure.add_axes((left / whole_width, bottom, width / whole_width, height / whole_height))


def legend(figure: Any, handles: Sequence[Any], columns: int) -> None:
    """At the top, in so many columns."""
    if handles:
        figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 1), ncols=columns)


def legend_height(entries: int, columns: int) -> float:
    """Pixels to keep free for it."""
    return 17.5 * -(-entries // columns) + 10 if entries else 0.0


def sign(name: str, colour: str, marker: str = "s") -> Any:
    """A marker and its name for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], ls="", marker=marker, color=colour, ms=8, label=name)


@contextmanager
def _settings(name: str) -> Iterator[Any]:
    """Matplotlib's Figure, apart from pyplot and its windows, under our settings."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    def figure(**options: Any) -> Figure:
        made = Figure(**options)
        FigureCanvasAgg(made)
        return made

    settings: Any = {**SETTINGS, "svg.hashsalt": name}
    with mpl.rc_context(settings):
        yield figure


def _for_page(text: str, name: str) -> str:
    """The file's <svg> with the page's colours, fonts and unique ids, and no more than it needs."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = text.replace(INK, "currentColor")
    for series, colour in SERIES.items():
        text = text.replace(colour, f"var(--{series})")
    # the page's font, of matplotlib's size
    text = re.sub(r"font: (?:\w+ )?([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for reference in ('id="', "url(#", 'href="#'):
        text = text.replace(reference, f"{reference}{name}-")
    text = text.replace("xlink:href", "href")
    text = re.sub(r"(\d+\.\d\d)\d+", r"\1", text)
    text = _share_styles(text)
    head = re.match(r"<svg[^>]*>", text)
    box = re.search(r'viewBox="([^"]*)"', text)
    assert head
    assert box
    text = f'<svg viewBox="{box[1]}" aria-hidden="true">' + text[head.end() :]
    return re.sub(r"\n\s*", "\n", text).strip()


def _share_styles(text: str) -> str:
    """Points that follow each other in one style have it once, on their group."""

    def shared(found: re.Match[str]) -> str:
        style = found[1]
        points = found[0].replace(f' style="{style}"', "")
        return f'<g style="{style}">{points}</g>'

    return re.sub(r'<use [^>]*? style="([^"]*)"/>(?:\s*<use [^>]*? style="\1"/>)+', shared, text)
