"""How the texts in a cache are kept and read: all of each, unless a method says otherwise."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reference.op import Array

if TYPE_CHECKING:
    from engine.cache.cells import Cells

NEVER = 2**31 - 1  # a position that no token has


@dataclass(frozen=True, slots=True)
class Step:
    """A step's tokens: their `cells` int32 [tokens], the `spans` int32 [tokens, 3] that they see,
    and their positions; `inputs` are the names of what the step is told."""

    inputs: Collection[str]
    cells: Array
    spans: Array
    positions: Array


class Method:
    """This one keeps and reads all. Others are files of their own, which override what is theirs:
    engine/cache/{eviction,pages,stretches,streaming,two_bits,merged}.py.

    Cells tell their method what becomes of sequences, a step asks it for `inputs`, and whoever
    reads a prompt tells it when that begins and that it is over.

    evicts      whether cells go when a prompt has been read
    ends        whether a step that reads a prompt to its end reads nothing behind it
    observers   tokens at the end of a prompt that are evaluated for it, whoever else has them
    stretch     tokens of a prompt that a step has to read; 0: any number
    """

    evicts = False
    ends = False
    observers = 0
    stretch = 0
    together = 0
    cells: "Cells"

    # Of a prompt

    def begin(self, sequence: int, tokens: int) -> None:
        """A prompt of so many tokens will be read into a sequence."""

    def reads(self, sequence: int, held: int, tokens: int) -> None:
        """It holds so many of the prompt's tokens; the others are read from here on."""

    def whole(self, sequence: int) -> None:
        """A text will be read into a sequence whose rows are wanted: its tokens see all."""

    def wanted(self, sequence: int) -> int:  # noqa: ARG002
        """How many free cells `finish` will want."""
        return 0

    def finish(self, sequence: int) -> None:
        """The prompt has been read."""

    # Of a sequence

    def copied(self, source: int, target: int, count: int) -> None:
        """`target`, which was empty, has the source's first `count` cells."""

    def moved(self, sequence: int, slot: int) -> None:
        """From a slot on its list has other cells than before."""

    def removed(self, sequence: int, begin: int, gone: Array) -> None:
        """Cells with positions from `begin` on will go: bool [length]. ValueError where that cannot
        be."""

    def freed(self, cells: Array) -> None:
        """Nobody has these any more."""

    def cleared(self) -> None:
        """No sequence holds anything."""

    def first(self, sequence: int, block: int) -> int:  # noqa: ARG002
        """The slot of its list from which on a block has its cells."""
        return 0

    def seen(self, sequence: int, node: str, block: int) -> int:  # noqa: ARG002
        """How many cells of a sequence there are for a node of a block, by its label, that attends,
        before the tokens of a step."""
        return self.cells.lengths[sequence] - self.first(sequence, block)

    def held(self, block: int) -> int:  # noqa: ARG002
        """How many cells hold something in a block."""
        return self.cells.capacity - self.cells.free

    @property
    def rows(self) -> int:
        """Those of a cache of keys or values."""
        return self.cells.capacity

    @property
    def packed(self) -> int:
        """How many pages of a block hold what has no rows, or rows what some of its heads keep."""
        return 0

    def reach(self, sequence: int, end: int) -> int:  # noqa: ARG002
        """The last position up to `end` from which the sequence can be gone on with."""
        return end

    def shares(self, sequence: int, end: int) -> int:
        """The same of another prompt that begins alike."""
        return self.cells.reach(sequence, end)

    def most(self, count: int, tokens: int) -> int:  # noqa: ARG002
        """Of `count` tokens at the beginning of a prompt of `tokens` those that another sequence's
        cells may do for."""
        return count

    def is_begun(self, sequence: int) -> bool:  # noqa: ARG002
        """Whether what follows a prompt is told from it: such a text is gone on with as it is."""
        return False

    def is_spoilt(self, sequence: int) -> bool:  # noqa: ARG002
        """Whether its cells are not those of tokens that saw all."""
        return False

    # Of a step

    @property
    def given(self) -> dict[str, Array]:
        """What a step finds cells by, and their positions, as long as the model lasts."""
        return {"lists": self.cells.lists, "cell_positions": self.cells.positions}

    def before(self) -> None:
        """A step is next, whose tokens have no cells yet."""

    def inputs(self, step: Step) -> Mapping[str, Array]:  # noqa: ARG002
        """Of what a step is told those values that are the method's."""
        return {}

    def ran(self) -> None:
        """The step has run."""

    def undo(self) -> None:
        """It failed."""

    # Of a session

    def session_fields(self, cells: Array) -> dict[str, Any]:  # noqa: ARG002
        """What a session says of sequence 0, of which it keeps these cells: `kv_policy` or
        `prompt_attention`, which name the method, and what belongs to them."""
        return {}

    def rows_of(self, cells: Array, block: int, fields: Mapping[str, Any]) -> Array:  # noqa: ARG002
        """The rows of a block's cache that a session keeps of these cells."""
        return cells

    def pages_of(self, cells: Array, fields: Mapping[str, Any]) -> Array:  # noqa: ARG002
        """And the pages."""
        return cells[:0]

    def restore(self, cells: Array, header: Mapping[str, Any]) -> None:
        """Sequence 0 has these cells, and this was told of it."""
