# ruff: noqa: ARG002 - a rule uses what it needs of the common signature
"""Building blocks of a story grammar: rules that can be sampled, weighed and parsed.

A derivation is a sequence of independent choices. Values once picked stay in the story's `values`,
so later text can name the same friend, toy or number again. No rule's choice *probabilities* depend
on earlier values, so the entropy of a derivation is a plain recursion; and since every text has one
derivation (`parse` counts them), it is the entropy of the text too.

All entropies and log probabilities are in nats.
"""

import math
import re
from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

Values = dict[str, Any]
Parsed = tuple[int, Values, float]  # text consumed (characters), values known, log probability

FIELD = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")  # "{hero.they}", "{thing:{gift.start}}"
NAME = re.compile(r"\{(\w+)")


class Rule(Protocol):
    """A rule that writes a part of a story."""

    def sample(self, rng: np.random.Generator, values: Values, out: list[str]) -> float:
        """Write text to `out` and picks to `values`; returns the log probability of the choices."""

    def entropy(self) -> float:
        """Expected -log probability of this rule's choices."""

    def parse(self, text: str, at: int, values: Values) -> Iterator[Parsed]:
        """Every way in which this rule could have written `text` from character `at` on."""


@dataclass(frozen=True)
class Say:
    """Literal text in which `{name}`, `{name.part}`, `{name:form}` show values picked before."""

    template: str

    def sample(self, rng: np.random.Generator, values: Values, out: list[str]) -> float:
        out.append(self.template.format_map(values))
        return 0.0

    def entropy(self) -> float:
        return 0.0

    def parse(self, text: str, at: int, values: Values) -> Iterator[Parsed]:
        written = self.template.format_map(values)
        if text.startswith(written, at):
            yield at + len(written), values, 0.0


@dataclass(frozen=True)
class Pick:
    """Pick one row of a table, with equal probabilities, other than those of `other_than`.

    The names in `other_than` must have different rows of the same table.
    """

    name: str
    table: tuple[Any, ...]
    other_than: tuple[str, ...] = ()

    def rows(self, values: Values) -> list[Any]:
        taken = [values[name] for name in self.other_than]
        return [row for row in self.table if row not in taken]

    def sample(self, rng: np.random.Generator, values: Values, out: list[str]) -> float:
        rows = self.rows(values)
        values[self.name] = rows[int(rng.random() * len(rows))]
        return -self.entropy()

    def entropy(self) -> float:
        return math.log(len(self.table) - len(self.other_than))

    def parse(self, text: str, at: int, values: Values) -> Iterator[Parsed]:
        for row in self.rows(values):
            yield at, values | {self.name: row}, -self.entropy()


@dataclass(frozen=True)
class Among:
    """Pick one of the story's values under `names`, with equal probabilities."""

    name: str
    names: tuple[str, ...]
    other_than: tuple[str, ...] = ()

    def pick(self, values: Values) -> Pick:
        return Pick(self.name, tuple(values[name] for name in self.names), self.other_than)

    def sample(self, rng: np.random.Generator, values: Values, out: list[str]) -> float:
        return self.pick(values).sample(rng, values, out)

    def entropy(self) -> float:
        return math.log(len(self.names) - len(self.other_than))

    def parse(self, text: str, at: int, values: Values) -> Iterator[Parsed]:
        return self.pick(values).parse(text, at, values)


@dataclass(frozen=True)
class Let:
    """Compute a value from known values: no choice, so no entropy."""

    name: str
    compute: Callable[[Values], Any]

    def sample(self, rng: np.random.Generator, values: Values, out: list[str]) -> float:
        values[self.name] = self.compute(values)
        return 0.0

    def entropy(self) -> float:
        return 0.0

    def parse(self, text: str, at: int, values: Values) -> Iterator[Parsed]:
        yield at, values | {self.name: self.compute(values)}, 0.0


@dataclass(frozen=True)
class Seq:
    """One rule after the other."""

    parts: tuple[Rule, ...]

    def sample(self, rng: np.random.Generator, values: Values, out: list[str]) -> float:
        return sum(part.sample(rng, values, out) for part in self.parts)

    def entropy(self) -> float:
        return sum(part.entropy() for part in self.parts)

    def parse(self, text: str, at: int, values: Values) -> Iterator[Parsed]:
        if not self.parts:
            yield at, values, 0.0
            return
        rest = Seq(self.parts[1:])
        for middle, known, first_log_p in self.parts[0].parse(text, at, values):
            for end, found, log_p in rest.parse(text, middle, known):
                yield end, found, first_log_p + log_p


@dataclass(frozen=True)
class OneOf:
    """One of several rules, in proportion to their weights."""

    options: tuple[tuple[float, Rule], ...]

    @cached_property
    def probabilities(self) -> tuple[float, ...]:
        total = sum(weight for weight, _ in self.options)
        return tuple(weight / total for weight, _ in self.options)

    @cached_property
    def thresholds(self) -> tuple[float, ...]:
        """The boundaries in [0, 1) between one option and the next."""
        return tuple(accumulate(self.probabilities[:-1]))

    def sample(self, rng: np.random.Generator, values: Values, out: list[str]) -> float:
        chosen = bisect(self.thresholds, rng.random())
        _, rule = self.options[chosen]
        return math.log(self.probabilities[chosen]) + rule.sample(rng, values, out)

    def entropy(self) -> float:
        pairs = zip(self.probabilities, self.options, strict=True)
        return sum(p * (rule.entropy() - math.log(p)) for p, (_, rule) in pairs)

    def parse(self, text: str, at: int, values: Values) -> Iterator[Parsed]:
        for p, (_, rule) in zip(self.probabilities, self.options, strict=True):
            for end, known, log_p in rule.parse(text, at, values):
                yield end, known, math.log(p) + log_p


def line(template: str, **fresh: tuple[Any, ...] | Pick | Among) -> Seq:
    """A sentence and a space. Each `fresh` table (or pick) is chosen just before its first mention.

    Picking late keeps parsing cheap: a wrong pick is refuted by the very next piece of text.
    """
    waiting = {n: Pick(n, t) if isinstance(t, tuple) else t for n, t in fresh.items()}
    parts: list[Rule] = []
    start = 0
    for field in FIELD.finditer(template):
        for name in NAME.findall(field.group()):
            if name in waiting:
                parts += [Say(template[start : field.start()]), waiting.pop(name)]
                start = field.start()
    if waiting:
        raise ValueError(f"{template!r} never mentions {sorted(waiting)}")
    return Seq((*parts, Say(template[start:] + " ")))


def seq(*parts: Rule | str) -> Seq:
    """Rules one after the other; a string is a line."""
    return Seq(tuple(line(part) if isinstance(part, str) else part for part in parts))


def one_of(*options: Rule | str | tuple[float, Rule | str]) -> OneOf:
    """A choice; an option without a weight has weight 1, a string is a line."""
    weighed = [option if isinstance(option, tuple) else (1.0, option) for option in options]
    return OneOf(tuple((w, line(rule) if isinstance(rule, str) else rule) for w, rule in weighed))


def maybe(rule: Rule | str, probability: float = 0.5) -> OneOf:
    """The rule, or nothing."""
    return one_of((probability, rule), (1 - probability, Seq(())))
