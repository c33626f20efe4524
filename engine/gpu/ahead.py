"""A step that is begun and not waited for."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.cache.cells import Cells
from engine.checks import not_finite
from engine.sampling.sampler import Argmax


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """Of one token of sequence 0, whose cell at `position` is taken."""

    position: int
    cells: Cells
    wait: Callable[[], Sequence[Argmax]]

    def row(self) -> Argmax:
        """What follows its token; NumericalError where that is no number."""
        (found,) = self.wait()
        if not math.isfinite(found.logprob):
            raise not_finite(self.position)
        return found

    def drop(self) -> None:
        """Its token is not the text's."""
        self.cells.remove(0, self.position, self.position + 1)
