"""How the tokens behind a prompt come: a step for each, or drafts and steps that verify them."""

from collections.abc import Sequence
from typing import Protocol

from engine.generation.completion import Completion, Piece
from engine.generation.timings import Drafting
from engine.model import Model
from engine.sampling.sampler import Row


class Decoding(Protocol):
    """What a generation asks for its text, that of sequence 0, in turns: `sample`, `has_room` and
    `run`."""

    @property
    def timings(self) -> Drafting | None:
        """Of drafts, if there are any."""

    def begin(self, prompt: Sequence[int]) -> None:
        """A text begins, whose cells the model has."""

    def sample(self, completion: Completion, row: Row) -> Piece:
        """Draw its next token."""

    def has_room(self, completion: Completion) -> bool:
        """Whether it can go on without another cell being freed."""

    def run(self, completion: Completion) -> Row:
        """What follows its last token: logits [vocab], valid until the next step, or what is wanted
        of them where they are on a device."""

    def settle(self) -> None:
        """Let the cache hold the cells of the text and no others."""


class OneByOne:
    """A step for each token."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.timings: Drafting | None = None

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def sample(self, completion: Completion, row: Row) -> Piece:
        return completion.sample(row)

    def has_room(self, completion: Completion) -> bool:  # noqa: ARG002
        return self._model.cells.free > 0

    def run(self, completion: Completion) -> Row:
        position = self._model.cells.next_position(0)
        likeliest = completion.sampler.takes_likeliest
        (row,) = self._model.rows(completion.tokens[-1:], (position,), ((0,),), (0,), likeliest)
        return row

    def settle(self) -> None:
        pass
