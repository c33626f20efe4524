"""Plots of the report on drafts."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.speculation.contest import Contest
from bench.speculation.sparse import UNION, Unions
from bench.speculation.synthetic import CURVE
from bench.speculation.verifying import GOAL, GOAL_TOKENS, VERIFY, Verifying


def _axes() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    return figure, figure.add_subplot()


def verifying(found: Verifying) -> Figure:
    """What a step costs by its tokens."""
    figure, axes = _axes()
    counts = list(found.samples)
    low, middle, high = np.transpose([found.quartiles(tokens) for tokens in counts])
    axes.errorbar(counts, middle, yerr=(middle - low, high - middle), marker="o", label="measured")
    axes.plot(GOAL_TOKENS, GOAL, "v", color="grey", label="goal")
    axes.set(
        xlabel="tokens of a step",
        ylabel="times a step of one token",
        title=f"{found.model}: what verifying costs",
        ylim=(0, None),
    )
    axes.legend()
    return figure


def curve(contest: Contest) -> Figure:
    """Speed by acceptance, measured and by the formula."""
    figure, axes = _axes()
    drafted = [(o, o.drafts) for o in contest.outcomes if o.drafts]
    alphas = [drafts.alpha for _, drafts in drafted]
    faster = [found for o, _ in drafted if (found := contest.faster(o))]
    reach = [(f.value - f.low, f.high - f.value) for f in faster]
    axes.errorbar(
        alphas, [f.value for f in faster], yerr=np.transpose(reach), fmt="o", label="measured"
    )
    of_all = [replace(drafted[0][1], alpha=float(alpha)) for alpha in np.linspace(0, 1, 101)]
    every = [drafts.alpha for drafts in of_all]
    axes.plot(every, [drafts.allowed for drafts in of_all], "--", label="the formula")
    with_cost = [drafts.verified for drafts in of_all]
    axes.plot(every, with_cost, ":", label="the formula with the measured cost of verifying")
    axes.axhline(1, color="grey", linewidth=1, label="plain")
    axes.set(
        xlabel="alpha, the acceptance of a token",
        ylabel="speed, times plain",
        title=f"{contest.model}: drafts of {of_all[0].gamma} tokens, c = {of_all[0].c:g}",
        ylim=(0, None),
    )
    axes.legend()
    return figure


def union(found: Unions) -> Figure:
    """Active neurons by the tokens of a step."""
    figure, axes = _axes()
    tokens = [each.tokens for each in found.found]
    axes.plot(tokens, [100 * each.share for each in found.found], "o-", label="measured")
    axes.plot(
        tokens, [100 * each.independent for each in found.found], "--", label="if independent"
    )
    axes.plot(tokens, [100 * each.alike for each in found.found], ":", label="1 - (1 - s)^k")
    axes.set(
        xlabel="k, tokens of a step",
        ylabel="neurons that any of them needs, %",
        title=f"{found.model}: union of masks",
        ylim=(0, None),
    )
    axes.legend()
    return figure


DRAWN: Mapping[str, Callable[[Any], Figure]] = {VERIFY: verifying, CURVE: curve, UNION: union}
