"""The report's plots: bars, lines in small panels, and the roofline."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.report.drawing import (
    INK,
    NARROW,
    WIDE,
    axes_at,
    drawn,
    label,
    legend,
    legend_height,
    look,
    sign,
)
from bench.report.table import Plot, digits


@dataclass(frozen=True, slots=True)
class Mark:
    """A figure with its quartiles, or without (both the same)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Line:
    """Marks over x, under a name that has one colour throughout the report."""

    name: str
    x: tuple[float, ...]
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A kernel on the roofline: operations a byte, GFLOP/s."""

    variant: str
    cache: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Ceiling:
    """What the machine allows: `slope` in GB/s for memory, else `level` in GFLOP/s."""

    name: str
    slope: float = 0.0
    level: float = 0.0


Groups = Mapping[str, Mapping[str, Mark]]
ROW, LABEL, GAP = 21, 19, 9  # pixels of a bar, of the name above a group, and below one
MARGIN, EDGE = 46, 8  # beside an axis with figures, and one without


def bars(anchor: str, caption: str, parts: Mapping[str, Groups], unit: str) -> Plot:
    """Parts with a scale of their own; in each, groups of bars with the figure at their end."""
    names = list(
        dict.fromkeys(n for groups in parts.values() for marks in groups.values() for n in marks)
    )
    shown = [n for n in names if n != "remainder"]
    entries = len(shown) if len(shown) > 1 else 0

    def height_of(groups: Groups) -> float:
        return sum(LABEL + ROW * len(marks) + GAP for marks in groups.values())

    def total(wide: bool) -> float:
        heights = sum(height_of(groups) + 2 * LABEL + 26 for groups in parts.values())
        return legend_height(entries, _columns(wide)) + heights + 16

    def draw(figure: Any, wide: bool) -> None:
        legend(figure, [sign(label(n), look(n)[0]) for n in shown[:entries]], _columns(wide))
        top = legend_height(entries, _columns(wide))
        for title, groups in parts.items():
            height = height_of(groups)
            top += LABEL + 6
            axes = axes_at(figure, EDGE, top, (WIDE if wide else NARROW) - 2 * EDGE, height)
            axes.set_title(title, fontweight="bold")
            _bars(axes, groups, wide)
            top += height + LABEL + 20
        axes.set_xlabel(unit, loc="left")

    return drawn(anchor, caption, draw, (total(True), total(False)))


def _bars(axes: Any, groups: Groups, wide: bool) -> None:
    """From the top down, one unit of y being a pixel."""
    longest = max(mark.high for marks in groups.values() for mark in marks.values())
    y = 0.0
    for group, marks in groups.items():
        axes.annotate(
            group, (0, y + LABEL / 2), xytext=(0, 0), textcoords="offset points", va="center"
        )
        y += LABEL
        for name, mark in marks.items():
            middle = y + ROW / 2
            axes.barh(middle, mark.value, ROW - 4, color=look(name)[0])
            if mark.low < mark.high:
                spread = [[mark.value - mark.low], [mark.high - mark.value]]
                axes.errorbar(mark.value, middle, xerr=spread, color=INK, elinewidth=1)
            axes.annotate(
                digits(mark.value), (mark.high, middle), xytext=(6, 0),
                textcoords="offset points", va="center",
            )  # fmt: skip
            y += ROW
        y += GAP
    axes.set(ylim=(y, 0), xlim=(0, longest * (1.08 if wide else 1.22) or 1), yticks=[])
    axes.spines["left"].set_visible(False)
    axes.locator_params(axis="x", nbins=7 if wide else 4)
    axes.xaxis.set_major_formatter(_plain)


def _columns(wide: bool) -> int:
    return 6 if wide else 2


def _plain(value: float, _: int) -> str:
    return f"{value:,g}"


def panels(
    anchor: str,
    caption: str,
    lines: Mapping[str, Sequence[Line]],
    axis: str,
    ticks: Mapping[float, str],
    log: bool = False,
) -> Plot:
    """A small plot for each title. `axis` says what x is, `ticks` names its values."""
    names = list(dict.fromkeys(line.name for many in lines.values() for line in many))
    entries = len(names) if len(names) > 1 else 0
    titles = max(title.count("\n") + 1 for title in lines)
    below, inner = (40 if axis else 26), 140

    def places(wide: bool) -> tuple[int, float, float]:
        """Panels side by side, and the pixels from one to the next, across and down."""
        across = 3 if wide else 1
        return across, (WIDE if wide else NARROW) / across, 16 * titles + 12 + inner + below

    def total(wide: bool) -> float:
        across, _, down = places(wide)
        return legend_height(entries, across) + down * -(-len(lines) // across)

    def draw(figure: Any, wide: bool) -> None:
        across, right, down = places(wide)
        handles = [sign(n, *look(n, i)) for i, n in enumerate(names)]
        legend(figure, handles[:entries], 6 if wide else 3)
        limits = [m.low for many in lines.values() for line in many for m in line.marks]
        highest = [m.high for many in lines.values() for line in many for m in line.marks]
        for i, (title, many) in enumerate(lines.items()):
            top = legend_height(entries, across) + down * (i // across) + 16 * titles + 10
            axes = axes_at(figure, right * (i % across) + MARGIN, top, right - MARGIN - 28, inner)
            for line in many:
                _line(axes, line, *look(line.name, names.index(line.name)))
            axes.set_title(title, fontweight="bold", fontsize=11, linespacing=1.4)
            axes.grid()
            if log:
                axes.set(xscale="log", yscale="log", ylim=(min(limits) / 2, max(highest) * 2))
                axes.minorticks_off()
            else:
                axes.set_ylim(0, 1.15 * max(m.high for line in many for m in line.marks))
                axes.locator_params(axis="y", nbins=5)
            axes.yaxis.set_major_formatter(_plain)
            _name_ticks(axes, ticks)
            axes.set_xlabel(axis)

    return drawn(anchor, caption, draw, (total(True), total(False)))


def _line(axes: Any, line: Line, colour: str, marker: str) -> None:
    middle = [m.value for m in line.marks]
    spread = [[m.value - m.low for m in line.marks], [m.high - m.value for m in line.marks]]
    axes.errorbar(line.x, middle, spread, color=colour, marker=marker, markersize=5, elinewidth=1)


def _name_ticks(axes: Any, ticks: Mapping[float, str], most: int = 5) -> None:
    """As many names as fit, the last among them; long ones are few."""
    most = min(most, 24 // max(map(len, ticks.values())))
    step = -(-len(ticks) // most)
    chosen = list(ticks.items())[::-1][::step]
    axes.set_xticks([x for x, _ in chosen], [name for _, name in chosen])
    axes.set_xticks([], minor=True)


def roofline(
    anchor: str, caption: str, points: Sequence[Point], ceilings: Sequence[Ceiling]
) -> Plot:
    """Log-log: the machine's ceilings, and below them every kernel."""
    least_x, most_x = min(p.x for p in points) / 2, max(p.x for p in points) * 2
    least_y = min(p.y for p in points) / 2
    peaks = [c for c in ceilings if c.level]
    slopes = [c for c in ceilings if c.slope]
    top = max([c.level for c in peaks] + [p.y for p in points])
    if peaks and slopes:  # show where the roof has its edge
        most_x = max(most_x, 2 * top / max(c.slope for c in slopes))
    kinds = sorted({(p.variant, p.cache) for p in points})
    entries = len(ceilings) + len(kinds)

    def draw(figure: Any, wide: bool) -> None:
        columns = 3 if wide else 1
        above = legend_height(entries, columns) + 24
        width = WIDE if wide else NARROW
        axes = axes_at(figure, MARGIN, above, width - MARGIN - 14, 380 if wide else 280)
        handles = []
        for i, ceiling in enumerate(slopes):
            xs = [least_x, max(least_x, min(most_x, top / ceiling.slope))]
            name = f"{ceiling.name}, {digits(ceiling.slope)} GB/s"
            ys = [ceiling.slope * x for x in xs]
            handles += axes.plot(xs, ys, color=INK, lw=1, ls=DASHES[i % 4], label=name)
        for i, ceiling in enumerate(peaks):
            edge = ceiling.level / max((c.slope for c in slopes), default=math.inf)
            xs = [max(edge, least_x), most_x]
            name = f"{ceiling.name}, {digits(ceiling.level)} GFLOP/s"
            ys = [ceiling.level] * 2
            handles += axes.plot(xs, ys, color=INK, lw=2.2, ls=DASHES[i % 4], label=name)
        variants = sorted({variant for variant, _ in kinds})
        for variant, cache in kinds:
            colour, marker = look(variant, variants.index(variant))
            mine = [p for p in points if (p.variant, p.cache) == (variant, cache)]
            handles += axes.plot(
                [p.x for p in mine], [p.y for p in mine], ls="", color=colour, alpha=0.85,
                marker=marker, ms=6 if wide else 5, markeredgewidth=1.2,
                markerfacecolor="none" if cache == "cold" else colour,
                label=f"{variant}, {cache}" if cache else variant,
            )  # fmt: skip
        axes.set(
            xscale="log", yscale="log", xlim=(least_x, most_x), ylim=(least_y, top * 2),
            xlabel="operations a byte",
        )  # fmt: skip
        axes.annotate(
            "GFLOP/s", (0, 1), xytext=(8 - MARGIN, 10), xycoords="axes fraction",
            textcoords="offset points",
        )  # fmt: skip
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(_plain)
        axes.minorticks_off()
        axes.grid()
        legend(figure, handles, columns)

    heights = legend_height(entries, 3) + 450, legend_height(entries, 1) + 350
    return drawn(anchor, caption, draw, heights)


DASHES = ("-", "--", "-.", ":")
