"""The section on tuning: what was measured to suit this machine, and what that gained."""

from collections.abc import Sequence

import numpy as np

from bench.report.table import Row, Section, Table, count, digits, number, plural, text
from kernels.tuning import Tuned, changes

TITLE = "Tuning"
LEAD = (
    "Knobs change no bit of what a kernel gives: how far ahead weights are asked for, and into"
    " which cache. They were measured on a model's own weights, cold, by all threads, in turns."
    " The gain is the time of a step of one token with the values that kernels begin with, over"
    " that with those chosen; beside it the least and the most that any turn gave."
)
HOW = "Nothing was measured on this machine: assay tune MODEL, or the first load of a large one."


def section(tunings: Sequence[Tuned]) -> Section:
    """A row for each kernel and node's sizes, the largest gain first."""
    if not tunings:
        return Section("tuning", TITLE, LEAD, notes=(HOW,))
    middle = float(np.median([one.gain for one in tunings]))
    kernels = plural(len(tunings), "kernel")
    caption = f"{kernels} at a node's sizes; the middle gain {digits(middle)}"
    columns = ("Kernel", "Sizes", "Threads", "Chosen (before)", "Gain", "Measured")
    rows = tuple(map(_row, sorted(tunings, key=lambda one: -one.gain)))
    return Section("tuning", TITLE, LEAD, tables=(Table("tunings", caption, columns, rows),))


def _row(one: Tuned) -> Row:
    low, high = one.spread
    return (
        text(one.kernel),
        text(one.shape),
        count(one.threads),
        text(changes(one)),
        number(one.gain, note=f"{low:.3f} to {high:.3f}"),
        text(one.when[:10]),
    )
