"""Drafts by a model: a draft model, or the target itself with fewer neurons.

`grow` is llama.cpp's drafter: a chain or tree of likely tokens. `draw` samples a chain and keeps
the distributions, for rejection sampling.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from engine.model import Model
from engine.sampling.sampler import Sampler
from engine.speculation.drafter import TEXT, Draft, DraftBuilder, Verification
from reference.op import Array

CANDIDATES = 10  # likeliest tokens, over which probabilities are normalized, as in llama.cpp
FORKS = 8  # of them, those considered for forks


@dataclass(frozen=True, slots=True)
class DraftState:
    """State of a drafting model: the text is in `sequence` of its cache and ends before position
    `end`; `logits` float32 [vocab] are the last token's, until the next step. `spare` are empty
    sequences that may be used."""

    model: Model
    sequence: int
    spare: Sequence[int]
    end: int
    logits: Array


class DraftingModel(Protocol):
    """A model that can continue a text and roll back."""

    def evaluated(self, text: Sequence[int]) -> AbstractContextManager[DraftState]:
        """Context manager: evaluate the text; on exit, roll back to it."""

    def capacity(self, text: Sequence[int]) -> int:
        """Number of tokens that it can draft."""


class DraftModel:
    """A draft model with its own cache, which keeps the text between drafts. Texts longer than its
    context are cut at the front, half of the context at a time."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._most = min(model.cells.capacity, model.config.positions or model.cells.capacity)
        self._held: list[int] = []

    def capacity(self, text: Sequence[int]) -> int:
        read = self._read(text)
        if max(read) >= self._model.config.vocab:  # a token that only the target has
            return 0
        return self._most - len(read)

    def _read(self, text: Sequence[int]) -> Sequence[int]:
        """The end of the text that fits, with room for another token."""
        half = -(-self._most // 2)
        over = max(0, len(text) + 1 - self._most)
        return text[min(-(-over // half) * half, len(text) - 1) :]

    @contextmanager
    def evaluated(self, text: Sequence[int]) -> Iterator[DraftState]:
        model, cells = self._model, self._model.cells
        text = self._read(text)
        most = min(len(self._held), len(text) - 1)
        shared = next((i for i in range(most) if self._held[i] != text[i]), most)
        shared = cells.reach(0, shared)
        cells.remove(0, begin=shared)
        self._held = self._held[:shared]
        logits = model.evaluate(text[shared:], shared)
        self._held = list(text)
        spare = range(1, model.options.sequences)
        try:
            yield DraftState(model, 0, spare, len(text), logits)
        finally:
            cells.remove(0, begin=len(text))
            for sequence in spare:
                cells.remove(sequence)


class SparseTarget:
    """The target itself with a stricter neuron threshold: the text's cells are shared, and only its
    last token is evaluated again, in another sequence."""

    def __init__(self, model: Model, threshold: float) -> None:
        self._model, self._threshold = model, threshold

    def capacity(self, _: Sequence[int]) -> int:
        return self._model.cells.free - 1

    @contextmanager
    def evaluated(self, text: Sequence[int]) -> Iterator[DraftState]:
        model, cells = self._model, self._model.cells
        last = model.options.sequences - 1
        before = model.threshold
        model.set_threshold(self._threshold)
        cells.copy(0, last)
        try:
            end = cells.next_position(0) + 1
            logits = model.evaluate(text[-1:], end - 1, sequence=last)
            yield DraftState(model, last, range(1, last), end, logits)
        finally:
            model.set_threshold(before)
            for sequence in range(1, model.options.sequences):
                cells.remove(sequence)


@dataclass(slots=True)
class Branch:
    """A branch's last node, and its sequence in the cache."""

    node: int
    sequence: int


def top_probabilities(logits: Array) -> list[tuple[int, float]]:
    """The likeliest tokens in order, with their probabilities normalized over these tokens."""
    best = np.argpartition(-logits, min(CANDIDATES, len(logits) - 1))[:CANDIDATES]
    best = best[np.lexsort((best, -logits[best]))]
    weights = np.exp(np.float64(logits[best]) - np.float64(logits[best[0]]))
    return list(zip(best.tolist(), (weights / weights.sum()).tolist(), strict=True))


def grow(
    state: DraftState, most: int, p_min: float, p_split: float = 1.0, branches: int = 1
) -> Draft:
    """Draft at most `most` likely tokens: each branch is extended by its likeliest token until its
    probability is below `p_min`, and forks at others above `p_split`, up to `branches` branches."""
    found = DraftBuilder()
    spare = list(state.spare)[: branches - 1]
    cells, rows = state.model.cells, state.logits[np.newaxis]
    live, position = [Branch(TEXT, state.sequence)], state.end
    while live:
        grown: list[Branch] = []
        tokens: list[int] = []
        for branch, row in zip(live, rows, strict=True):
            likely = top_probabilities(row)
            going = likely[0][1] >= p_min
            wanted = [token for token, share in likely[1:FORKS] if share > p_split]
            for token in [likely[0][0], *wanted] if going else []:
                if len(found) == most or (token != likely[0][0] and not spare):
                    break
                sequence = branch.sequence
                if token != likely[0][0]:
                    sequence = spare.pop(0)
                    cells.copy(branch.sequence, sequence, end=position)
                grown.append(Branch(found.add(branch.node, token), sequence))
                tokens.append(token)
        if not grown or len(found) == most:
            break
        owners = [(branch.sequence,) for branch in grown]
        rows = state.model.step(tokens, [position] * len(grown), owners, range(len(grown)))
        live, position = grown, position + 1
    return found.build()


def draw(state: DraftState, most: int, sampler: Sampler, p_min: float) -> Draft:
    """Sample a chain with its distributions. It ends where no token has probability `p_min` or
    more; a criterion on the sampled token would change the distribution."""
    tokens: list[int] = []
    rows: list[Array] = []
    logits, position = state.logits, state.end
    while len(tokens) < most:
        distribution = sampler.distribution(logits)
        if distribution.max() < p_min:
            break
        token = sampler.draw(distribution)
        tokens.append(token)
        rows.append(distribution)
        if len(tokens) < most:
            logits = state.model.step([token], [position], [(state.sequence,)], [0])[0]
            position += 1
    return Draft.chain(tokens, np.array(rows) if rows else None)


class ModelDrafter:
    """Drafts made by `propose`; those shorter than `least` are discarded."""

    def __init__(
        self,
        model: DraftingModel,
        propose: Callable[[DraftState, int], Draft],
        least: int,
    ) -> None:
        self._drafting_model, self._propose, self._least = model, propose, least

    def begin(self, _: Sequence[int]) -> None:
        """The model's cache keeps the common prefix."""

    def draft(self, text: Sequence[int], most: int) -> Draft:
        most = min(most, self._drafting_model.capacity(text))
        if most < max(1, self._least):
            return Draft()
        with self._drafting_model.evaluated(text) as state:
            found = self._propose(state, most)
        return found if len(found) >= self._least else Draft()

    def verified(self, step: Verification) -> None:
        """Not needed: the next `draft` has the text."""
