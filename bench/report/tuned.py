"""The section on tuning: what was measured to suit this machine, and what that gained."""

from collections.abc import Sequence

import numpy as np

from bench.report.table import Section, count, digits, number, plural, table, text
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
    made = table(
        "tunings",
        f"{plural(len(tunings), 'kernel')} at a node's sizes; the middle gain {digits(middle)}",
        sorted(tunings, key=lambda one: -one.gain),
        {
            "Kernel": lambda one: text(one.kernel),
            "Sizes": lambda one: text(one.shape),
            "Threads": lambda one: count(one.threads),
            "Chosen (before)": lambda one: text(changes(one)),
            "Gain": lambda one: number(one.gain, note="{:.3f} to {:.3f}".format(*one.spread)),
            "Measured": lambda one: text(one.when[:10]),
        },
    )
    return Section("tuning", TITLE, LEAD, tables=(made,))
