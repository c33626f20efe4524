"""Long tales, in which a fact is told early and asked for late.

First a tale tells the colours of many owners' things, with short stories between. Then it asks for
them in another order, each at most once, again with stories between. Each colour is independent, so
only the text determines it. As in the stories (grammar.py), the probability of every part is known.
All in nats.
"""

import math
from dataclasses import dataclass, field

import numpy as np

from data.story import words
from data.story.grammar import sample

KEYS = tuple(
    (owner.name, toy.one) for owner in words.CHILDREN + words.ANIMALS for toy in words.TOYS
)


@dataclass(frozen=True)
class Fact:
    """An owner's thing, and its colour."""

    owner: str
    toy: str
    colour: str

    @property
    def told(self) -> str:
        return f"{self.owner}'s {self.toy} is {self.colour}."

    @property
    def question(self) -> str:
        return f"What colour is {self.owner}'s {self.toy}?"


@dataclass(frozen=True)
class Part:
    """A story, or a statement or question about a `fact`; the log probability (nats) of its text
    among parts of its kind."""

    text: str
    log_probability: float
    fact: Fact | None = None


@dataclass
class Tale:
    """Parts one by one: a fraction `stories` of them are stories."""

    rng: np.random.Generator
    stories: float
    facts: list[Fact] = field(default_factory=list)  # told but not yet asked for

    def __post_init__(self) -> None:
        self._keys = [KEYS[i] for i in self.rng.permutation(len(KEYS))]

    def tell(self) -> Part:
        """A story or a new fact; only stories once all facts are told."""
        if story := self._story(bool(self._keys)):
            return story
        choices = len(self._keys) * len(words.COLOURS)
        colour = words.COLOURS[int(self.rng.random() * len(words.COLOURS))].one
        owner, toy = self._keys.pop()
        fact = Fact(owner, toy, colour)
        self.facts.append(fact)
        return Part(fact.told, math.log1p(-self.stories) - math.log(choices), fact)

    def ask(self) -> Part:
        """A story, or a question with its answer; only stories once all facts are asked for."""
        if story := self._story(bool(self.facts)):
            return story
        choices = len(self.facts)
        fact = self.facts.pop(int(self.rng.random() * choices))
        log_probability = math.log1p(-self.stories) - math.log(choices)
        return Part(f"{fact.question} {fact.told}", log_probability, fact)

    def _story(self, others: bool) -> Part | None:
        """A story if it is next; it always is if there are no `others`."""
        share = self.stories if others else 1.0
        if self.rng.random() >= share:
            return None
        story = sample(self.rng)
        return Part(story.text, math.log(share) + story.log_probability)
