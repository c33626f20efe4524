"""A story grammar whose entropy is known exactly.

A story is an opening, a plot and an ending; sometimes the hero has a toy that returns at the end.
Every story has exactly one derivation, so `log_probability` of a text is exact, and no language
model can have a lower expected loss on samples than `entropy()`. All in nats.
"""

from dataclasses import dataclass

import numpy as np

from data.story import words
from data.story.plots import (
    PLOTS,
    Cast,
    ending,
    keepsake,
    keepsake_ending,
    lost,
    opening,
    way_home,
)
from data.story.rules import Rule, Values, maybe, one_of, seq


@dataclass(frozen=True)
class Story:
    """A text without a line break, and the log probability (nats) with which it is written."""

    text: str
    log_probability: float


def tale(cast: Cast) -> Rule:
    """A story whose characters come from `cast`."""
    any_plot = one_of(*(plot(cast) for plot in PLOTS))
    scenery = maybe(way_home(), 0.4)
    with_toy = seq(keepsake(), one_of((2, lost(cast)), (3, any_plot)), scenery, keepsake_ending())
    without_toy = seq(any_plot, scenery, ending())
    return seq(opening(cast), one_of((2, with_toy), (3, without_toy)), maybe("The end.", 0.4))


STORY = one_of((3, tale(words.CHILDREN)), (2, tale(words.ANIMALS)))


def sample(rng: np.random.Generator) -> Story:
    values: Values = {}
    out: list[str] = []
    log_probability = STORY.sample(rng, values, out)
    return Story("".join(out).rstrip(), log_probability)


def entropy() -> float:
    """Exact expected -log probability of a story (nats), by recursion over the rules."""
    return STORY.entropy()


def derivations(text: str) -> list[float]:
    """The log probability of every derivation of a text: one for a story, none for another text."""
    whole = text + " "
    return [log_p for end, _, log_p in STORY.parse(whole, 0, {}) if end == len(whole)]


def log_probability(text: str) -> float:
    """The exact log probability of a text; minus infinity if the grammar cannot write it."""
    found = derivations(text)
    if len(found) > 1:
        raise ValueError(f"the grammar is ambiguous: {len(found)} derivations of {text!r}")
    return found[0] if found else -np.inf


def entropy_gap(rng: np.random.Generator, stories: int) -> tuple[float, float]:
    """Mean of -log probability over samples minus `entropy()`, and its standard error (nats)."""
    surprise = [-sample(rng).log_probability for _ in range(stories)]
    return float(np.mean(surprise) - entropy()), float(np.std(surprise) / stories**0.5)
