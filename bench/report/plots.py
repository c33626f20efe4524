"""The report's plots: bars, lines in small panels, and the roofline, as matplotlib's SVG in the
page's own font and colours.

Text stays text. What is drawn in a stand-in colour becomes the page's: `currentColor` for text and
axes, the variables --s0, --s1, … for series, whose values for light and dark, apart for the
colour-blind too, are in page.css. Each plot is drawn twice, for a desk and for a phone.
"""

import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from bench.report.table import Plot
from bench.report.words import digits

FOLDER = Path(__file__).parent
WIDE, NARROW = 900, 340  # CSS pixels, a unit of the SVG each
INCH = 72  # pixels
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
    "ggml": ("s1", "s"),
    "scipy": ("s6", "X"),
    "numba": ("s2", "p"),
    "onednn": ("s5", "P"),
    "generic": ("s0", "o"),
    "avx512_vnni": ("s1", "s"),
    "amx": ("s2", "^"),
    "avx2": ("s5", "v"),
    "avx512": ("s4", "D"),
    "avx512_bf16": ("s3", "h"),
    "amx_bf16": ("s2", "p"),
    "lut_avx512": ("s6", "*"),
    "lut_avx2": ("s6", "X"),
    "neon_dotprod": ("s4", "v"),
    "neon_i8mm": ("s1", "D"),
    "neon_bf16": ("s3", "^"),
    "scalar": (GREY, "P"),
    "remainder": (GREY, "o"),
}
MARKERS = "osD^vP*X"
PLAIN = "{x:,g}"  # figures of an axis
DASHES = ("-", "--", "-.", ":")
ROW, LABEL, GAP = 21, 19, 9  # pixels of a bar, of the name above a group, and below one
MARGIN, EDGE = 46, 8  # beside an axis with figures, and one without
Marks: TypeAlias = Iterable[Mapping[str, Any]] | pd.DataFrame


def look(name: str, position: int = 0) -> tuple[str, str]:
    """Colour and marker of a name, or of an index where the name has none."""
    series, marker = NAMES.get(name, (f"s{position % 7}", MARKERS[position % len(MARKERS)]))
    return SERIES[series], marker


def label(name: str) -> str:
    """A contender's display name."""
    return {"assay": "Assay", "assay fast": "Assay, fast"}.get(name, name)


class Sheet:
    """A figure as wide as on a desktop or a phone, laid out in pixels from its upper left corner.
    (Matplotlib's own layouts measure text in a font that the page does not have, and take long.)"""

    def __init__(self, wide: bool) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self.wide, self.width = wide, WIDE if wide else NARROW
        self.figure, self._places = Figure(), list[tuple[Any, tuple[float, ...]]]()
        FigureCanvasAgg(self.figure)  # apart from pyplot and its windows

    def axes(self, left: float, top: float, width: float, height: float) -> Any:
        axes = self.figure.add_axes((0, 0, 1, 1), label=str(len(self._places)))
        self._places.append((axes, (left, top, width, height)))
        return axes

    def legend(self, handles: Sequence[Any], columns: int) -> float:
        """Draw the legend at the top, in so many columns; returns its height. A single name needs
        none."""
        if len(handles) > 1:
            place = {"loc": "upper left", "bbox_to_anchor": (0, 1)}
            self.figure.legend(handles=handles, ncols=columns, **place)
        return legend_height(len(handles), columns)

    def svg(self, height: float) -> str:
        """The file, at this height."""
        self.figure.set_size_inches(self.width / INCH, height / INCH)
        for axes, (left, top, width, high) in self._places:
            place = (left / self.width, 1 - (top + high) / height)
            axes.set_position((*place, width / self.width, high / height))
        file, empty = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
        self.figure.savefig(file, format="svg", transparent=True, metadata=empty)
        return file.getvalue()


def legend_height(entries: int, columns: int) -> float:
    return 17.5 * -(-entries // columns) + 10 if entries > 1 else 0.0


def drawn(anchor: str, caption: str, draw: Callable[[Sheet], float]) -> list[Plot]:
    """The plot by `draw`, which fills a sheet and returns its height in pixels."""
    import matplotlib as mpl

    found = []
    for name, wide in ((f"{anchor}-w", True), (f"{anchor}-n", False)):
        with mpl.rc_context({"svg.hashsalt": name}, FOLDER / "page.mplstyle"):
            sheet = Sheet(wide)
            found.append(_for_page(sheet.svg(draw(sheet)), name))
    return [Plot(anchor, caption, *found)]


def bars(anchor: str, caption: str, marks: Marks, unit: str) -> list[Plot]:
    """`marks`: by `part`, `group` and `name` a `value`, and `low` and `high` where it has a spread;
    none, no plot. Parts have a scale of their own; in each, groups of bars have the figure at their
    end."""
    marks = _with_spread(marks)
    if not len(marks):
        return []
    shown = [name for name in marks["name"].unique() if name != "remainder"]

    def draw(sheet: Sheet) -> float:
        signs = [_sign(label(name), look(name)[0]) for name in shown]
        top = sheet.legend(signs, 6 if sheet.wide else 2)
        for title, part in marks.groupby("part", sort=False):
            height = part["group"].nunique() * (LABEL + GAP) + ROW * len(part)
            top += LABEL + 6
            axes = sheet.axes(EDGE, top, sheet.width - 2 * EDGE, height)
            axes.set_title(title, fontweight="bold")
            _bars(axes, part, sheet.wide)
            top += height + LABEL + 20
        axes.set_xlabel(unit, loc="left")
        return top + 16

    return drawn(anchor, caption, draw)


def _with_spread(marks: Marks) -> pd.DataFrame:
    """Marks as a frame; a value without quartiles serves as both."""
    found = pd.DataFrame(marks)
    if not len(found):
        return found
    known = found.reindex(columns=["low", "high"])
    return found.assign(**{name: known[name].fillna(found["value"]) for name in known})


def _bars(axes: Any, part: pd.DataFrame, wide: bool) -> None:
    """From the top down, one unit of y being a pixel."""
    y = 0.0
    for group, marks in part.groupby("group", sort=False):
        place = {"xytext": (0, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(group, (0, y + LABEL / 2), **place)
        y += LABEL
        for mark in marks.itertuples():
            middle = y + ROW / 2
            axes.barh(middle, mark.value, ROW - 4, color=look(mark.name)[0])
            if mark.low < mark.high:
                spread = [[mark.value - mark.low], [mark.high - mark.value]]
                axes.errorbar(mark.value, middle, xerr=spread, color=INK, elinewidth=1)
            axes.annotate(digits(mark.value), (mark.high, middle), **place | {"xytext": (6, 0)})
            y += ROW
        y += GAP
    longest = part["high"].max() * (1.08 if wide else 1.22)
    axes.set(ylim=(y, 0), xlim=(0, longest or 1), yticks=[])
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=7 if wide else 4)
    axes.xaxis.set_major_formatter(PLAIN)


def panels(
    anchor: str,
    caption: str,
    marks: Marks,
    axis: str,
    ticks: Mapping[float, str],
    log: bool = False,
) -> list[Plot]:
    """A small plot for each `title`. `marks` has by `title` and `name` an `x`, a `value`, and `low`
    and `high` where it has a spread; none, no plot. `axis` says what x is, `ticks` names its
    values."""
    marks = _with_spread(marks)
    if not len(marks):
        return []
    names = list(marks["name"].unique())
    above: int = 16 * max(title.count("\n") + 1 for title in marks["title"])
    inner, below = 140, (40 if axis else 26)

    def draw(sheet: Sheet) -> float:
        across = 3 if sheet.wide else 1
        right, down = sheet.width / across, above + 12 + inner + below
        signs = [_sign(name, *look(name, i)) for i, name in enumerate(names)]
        top = sheet.legend(signs, across)
        for i, (title, many) in enumerate(marks.groupby("title", sort=False)):
            high = top + down * (i // across) + above + 10
            axes = sheet.axes(right * (i % across) + MARGIN, high, right - MARGIN - 28, inner)
            for name, line in many.groupby("name", sort=False):
                colour, marker = look(name, names.index(name))
                spread = [line["value"] - line["low"], line["high"] - line["value"]]
                axes.errorbar(
                    line["x"], line["value"], spread,
                    color=colour, marker=marker, markersize=5, elinewidth=1,
                )  # fmt: skip
            axes.set_title(title, fontweight="bold", fontsize=11, linespacing=1.4)
            axes.grid()
            if log:
                lowest, highest = marks["low"].min() / 2, marks["high"].max() * 2
                axes.set(xscale="log", yscale="log", ylim=(lowest, highest))
                axes.minorticks_off()
            else:
                axes.set_ylim(0, 1.15 * many["high"].max())
                axes.locator_params(axis="y", nbins=5)
            axes.yaxis.set_major_formatter(PLAIN)
            _name_ticks(axes, ticks)
            axes.set_xlabel(axis)
        return top + down * (i // across + 1)

    return drawn(anchor, caption, draw)


def grids(anchor: str, caption: str, marks: Marks, across: str, down: str) -> list[Plot]:
    """A small grid for each `title`: fields by `x` and `y`, the first `y` on top, each as full of
    colour as its `value`, a share, and with it in per cent; none, no plot. `across` and `down` say
    what x and y are."""
    marks = pd.DataFrame(marks)
    if not len(marks):
        return []
    xs, ys = (list(marks[axis].unique()) for axis in ("x", "y"))

    def draw(sheet: Sheet) -> float:
        beside = 3 if sheet.wide else 1
        right, inner = sheet.width / beside, ROW * len(ys)
        for i, (title, many) in enumerate(marks.groupby("title", sort=False)):
            top = LABEL + GAP + (inner + 68) * (i // beside)
            axes = sheet.axes(right * (i % beside) + MARGIN + 12, top, right - MARGIN - 24, inner)
            for x, y, value in many[["x", "y", "value"]].itertuples(index=False):
                place = xs.index(x), ys.index(y)
                axes.add_patch(_field(place, value))
                axes.annotate(f"{100 * value:.0f}", place, ha="center", va="center", fontsize=10)
            axes.set_title(title, fontweight="bold", fontsize=11)
            axes.set(xlim=(-0.5, len(xs) - 0.5), ylim=(len(ys) - 0.5, -0.5), xlabel=across)
            axes.set_xticks(range(len(xs)), xs)
            axes.set_yticks(range(len(ys)), ys)
            axes.set_ylabel("" if i % beside else down)
            axes.tick_params(length=0)
        return top + inner + 56

    return drawn(anchor, caption, draw)


def _field(place: tuple[int, int], value: float) -> Any:
    """A square of a grid around a place; colours are pale enough for dark text."""
    from matplotlib.patches import Rectangle

    corner = place[0] - 0.48, place[1] - 0.46
    return Rectangle(corner, 0.96, 0.92, color=look("assay")[0], alpha=0.65 * value, linewidth=0)


def distances(anchor: str, caption: str, marks: Marks, axis: str) -> list[Plot]:
    """A row for each `group`, in which each `name` has marks at its `value`s, on a scale of powers
    of ten with a line at 1; those that are not `full` are hollow. What is too small or too large
    for the scale stands at its ends."""
    marks = pd.DataFrame(marks)
    if not len(marks):
        return []
    names, groups = (list(marks[column].unique()) for column in ("name", "group"))
    known = marks["value"][(marks["value"] > 0) & np.isfinite(marks["value"])]
    low, high = max(1e-4, min(known, default=0.1)) / 2, max(known, default=1.0) * 2
    low, high = min(low, 0.1), max(high, 10.0)

    def draw(sheet: Sheet) -> float:
        signs = [_sign(label(name), *look(name, i)) for i, name in enumerate(names)]
        top, left = sheet.legend(signs, 7 if sheet.wide else 3) + 8, 122
        height = ROW * len(groups)
        axes = sheet.axes(left, top, sheet.width - left - 14, height)
        for (group, name, full), some in marks.groupby(["group", "name", "full"], sort=False):
            colour, marker = look(name, names.index(name))
            y = groups.index(group) + 0.6 * (names.index(name) + 0.5) / len(names) - 0.3
            axes.plot(
                some["value"].clip(low, high), [y] * len(some), ls="", color=colour, marker=marker,
                ms=6, markerfacecolor=colour if full else "none", clip_on=False,
            )  # fmt: skip
        axes.axvline(1, color=INK, lw=1)
        axes.set(xscale="log", xlim=(low, high), ylim=(len(groups) - 0.5, -0.5), xlabel=axis)
        axes.set_yticks(range(len(groups)), groups)
        axes.tick_params(axis="y", length=0, pad=10)
        axes.minorticks_off()
        axes.locator_params(axis="x", numticks=9 if sheet.wide else 5)
        axes.xaxis.set_major_formatter(_power)
        axes.grid()
        return top + height + 48

    return drawn(anchor, caption, draw)


def _power(value: float, _: int) -> str:
    """A power of ten, without rounding small ones away."""
    return f"{value:,g}" if value >= 0.01 else f"1e{math.log10(value):.0f}"


def _name_ticks(axes: Any, ticks: Mapping[float, str], most: int = 5) -> None:
    """As many names as fit, the last among them; long ones are few."""
    most = min(most, 24 // max(map(len, ticks.values())))
    step = -(-len(ticks) // most)
    chosen = list(ticks.items())[::-1][::step]
    axes.set_xticks([x for x, _ in chosen], [name for _, name in chosen])
    axes.set_xticks([], minor=True)


def _sign(name: str, colour: str, marker: str = "s") -> Any:
    """A marker and its name for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], ls="", marker=marker, color=colour, ms=8, label=name)


def roofline(
    anchor: str,
    caption: str,
    points: pd.DataFrame,
    slopes: Mapping[str, float],
    peaks: Mapping[str, float],
) -> list[Plot]:
    """Log-log: the machine's ceilings, `slopes` in GB/s and `peaks` in GFLOP/s, and every kernel
    below them: `points` have `variant`, `cache`, x in operations a byte and y in GFLOP/s."""
    least_x, most_x = points["x"].min() / 2, points["x"].max() * 2
    top = max([*peaks.values(), points["y"].max()])
    steepest = max(slopes.values(), default=math.inf)
    if peaks and slopes:  # show where the roof has its edge
        most_x = max(most_x, 2 * top / steepest)
    variants = sorted(points["variant"].unique())

    def draw(sheet: Sheet) -> float:
        entries = len(slopes) + len(peaks) + len(points[["variant", "cache"]].drop_duplicates())
        columns, height = (3, 380) if sheet.wide else (1, 280)
        above = legend_height(entries, columns) + 24
        axes = sheet.axes(MARGIN, above, sheet.width - MARGIN - 14, height)
        handles = []
        for i, (name, slope) in enumerate(slopes.items()):
            xs = [least_x, max(least_x, min(most_x, top / slope))]
            named = {"ls": DASHES[i % 4], "label": f"{name}, {digits(slope)} GB/s"}
            handles += axes.plot(xs, [slope * x for x in xs], color=INK, lw=1, **named)
        for i, (name, peak) in enumerate(peaks.items()):
            xs = [max(peak / steepest, least_x), most_x]
            named = {"ls": DASHES[i % 4], "label": f"{name}, {digits(peak)} GFLOP/s"}
            handles += axes.plot(xs, [peak] * 2, color=INK, lw=2.2, **named)
        for (variant, cache), mine in points.groupby(["variant", "cache"]):
            colour, marker = look(variant, variants.index(variant))
            handles += axes.plot(
                mine["x"], mine["y"], ls="", color=colour, alpha=0.85,
                marker=marker, ms=6 if sheet.wide else 5, markeredgewidth=1.2,
                markerfacecolor="none" if cache == "cold" else colour,
                label=f"{variant}, {cache}" if cache else variant,
            )  # fmt: skip
        axes.set(
            xscale="log", yscale="log", xlim=(least_x, most_x),
            ylim=(points["y"].min() / 2, top * 2), xlabel="operations a byte",
        )  # fmt: skip
        axes.annotate(
            "GFLOP/s", (0, 1), xytext=(8 - MARGIN, 10), xycoords="axes fraction",
            textcoords="offset points",
        )  # fmt: skip
        for each in (axes.xaxis, axes.yaxis):
            each.set_major_formatter(PLAIN)
        axes.minorticks_off()
        axes.grid()
        return sheet.legend(handles, columns) + height + 70

    return drawn(anchor, caption, draw)


def standalone(drawing: str) -> str:
    """A page's <svg> as a file of its own, in the page's light colours."""
    colours = re.search(r":root \{.*?\}", (FOLDER / "page.css").read_text(), re.DOTALL)
    assert colours
    style = "svg { color: var(--ink); background: var(--paper); font-family: sans-serif; }"
    head = '<svg xmlns="http://www.w3.org/2000/svg"'
    return drawing.replace("<svg", head, 1).replace(
        ">", f">\n<style>\n{colours[0]}\n{style}\n</style>", 1
    )


def _for_page(text: str, name: str) -> str:
    """The file's <svg> with the page's colours, fonts and unique ids, minimised."""
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box
    text = re.sub(r"\A.*?<svg[^>]*>", f'<svg viewBox="{box[1]}" aria-hidden="true">', text,
                  flags=re.DOTALL)  # fmt: skip
    for unwanted in (
        r"<metadata>.*?</metadata>|<!--.*?-->",
        r"<defs>\s*<style.*?</style>\s*</defs>",
    ):
        text = re.sub(unwanted, "", text, flags=re.DOTALL)
    text = text.replace(INK, "currentColor")
    for series, colour in SERIES.items():
        text = text.replace(colour, f"var(--{series})")
    # the page's font, of matplotlib's size
    text = re.sub(r"font: (?:\w+ )?([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for reference in ('id="', "url(#", 'href="#'):
        text = text.replace(reference, f"{reference}{name}-")
    text = text.replace("xlink:href", "href")
    text = re.sub(r"(\d+\.\d\d)\d+", r"\1", text)
    text = re.sub(r'<use [^>]*? style="([^"]*)"/>(?:\s*<use [^>]*? style="\1"/>)+', _shared, text)
    return re.sub(r"\n\s*", "\n", text).strip()


def _shared(found: re.Match[str]) -> str:
    """Move the common style of consecutive points to their group."""
    style = found[1]
    points = found[0].replace(f' style="{style}"', "")
    return f'<g style="{style}">{points}</g>'
