"""How the tokens behind a prompt come: a step for each, or drafts and steps that verify them."""

from collections.abc import Sequence
from typing import Protocol

from engine.generation.completion import Completion, Piece
from engine.generation.timings import Drafting
from engine.model import Model
from engine.sampling.sampler import Row


class Decoding(Protocol):
    """What a generation asks, in turns: `has_room`, `run`, and of each completion `sample`."""

    @property
    def timings(self) -> Drafting | None:
        """Of drafts, if there are any."""

    def begin(self, prompt: Sequence[int]) -> None:
        """A text begins, whose cells the model has."""

    def has_room(self, live: Sequence[Completion]) -> bool:
        """Whether each of these can go on without another cell being freed."""

    def run(self, live: Sequence[Completion]) -> Sequence[Row]:
        """What follows the last token of each: logits [vocab], valid until the next step, or what
        is wanted of them where they are on a device."""

    def sample(self, completion: Completion, row: Row) -> Piece:
        """Draw a completion's next token."""

    def settle(self) -> None:
        """Let the cache hold the cells of the text and no others."""


class OneByOne:
    """A step for one token of each completion."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.timings: Drafting | None = None

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def has_room(self, live: Sequence[Completion]) -> bool:
        return self._model.cells.free >= len(live)

    def run(self, live: Sequence[Completion]) -> Sequence[Row]:
        model = self._model
        tokens = [completion.tokens[-1] for completion in live]
        positions = [model.cells.next_position(completion.index) for completion in live]
        sequences = [(completion.index,) for completion in live]
        likeliest = all(one.sampler.takes_likeliest for one in live)
        return model.rows(tokens, positions, sequences, range(len(live)), likeliest)

    def sample(self, completion: Completion, row: Row) -> Piece:
        return completion.sample(row)

    def settle(self) -> None:
        pass
