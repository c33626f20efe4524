"""A step that is launched before the host knows its input token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.cache.cells import Cells
from engine.checks import check_argmax
from engine.sampling.sampler import Argmax


@dataclass(frozen=True, slots=True, eq=False)
class LaunchedStep:
    """A launched step of one token of sequence 0, whose cell at `position` is reserved."""

    position: int
    cells: Cells
    wait: Callable[[], Sequence[Argmax]]

    def row(self) -> Argmax:
        """The logits after its token; NumericalError if they are not finite."""
        (found,) = check_argmax(self.wait(), (self.position,))
        return found

    def drop(self) -> None:
        """Discard the step: its token is not the text's."""
        self.cells.remove(0, self.position, self.position + 1)
