"""Planted bugs of linear_experts."""

from typing import Any

import numpy as np

from conformance.bugs.bug import in_python, sharing
from reference.linear_experts import linear_experts, runs
from reference.op import Arguments, Array

SOME = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_K", "MXFP4")


def as_listed(**inputs: Any) -> Array:
    """Weights by the experts' numbers, not where they are held."""
    held, experts = len(inputs["weight"]), len(inputs["slots"])
    return linear_experts(**{**inputs, "slots": np.arange(experts) % held})


def begins_one_late(**inputs: Any) -> Array:
    """An expert's first token goes to the one before."""
    ends = inputs["ends"].copy()
    used = [expert for expert, *_ in runs(ends)]
    for before in used[:-1]:
        ends[before:] = np.where(ends[before:] == ends[before], ends[before] + 1, ends[before:])
    return linear_experts(**{**inputs, "ends": ends})


def one_expert_for_all(**inputs: Any) -> Array:
    found = runs(inputs["ends"])
    if found:
        slots = np.full_like(inputs["slots"], inputs["slots"][found[0][0]])
        inputs = {**inputs, "slots": slots}
    return linear_experts(**inputs)


def sixteen_tokens_at_most(**inputs: Any) -> Array:
    """Of an expert only so many tokens are met."""
    out = linear_experts(**inputs)
    for _, begin, end in runs(inputs["ends"]):
        out[begin + 16 : end] = 0
    return out


def last_expert_left_out(**inputs: Any) -> Array:
    out = linear_experts(**inputs)
    for _, begin, _ in runs(inputs["ends"])[-1:]:
        out[begin:] = 0
    return out


def not_stored(inputs: Arguments, outputs: dict[str, Array], thread: int, n_threads: int) -> None:
    """Tokens of experts beyond the 256th are left as they were."""
    if thread == 0:
        end = inputs["ends"][:256][-1]
        outputs["out"][:end] = linear_experts(**inputs)[:end]


BUGS = (
    *in_python(
        "linear_experts",
        as_listed,
        begins_one_late,
        one_expert_for_all,
        sixteen_tokens_at_most,
        last_expert_left_out,
        formats=SOME,
    ),
    *sharing("linear_experts", not_stored, formats=("F32", "Q4_0")),
)
