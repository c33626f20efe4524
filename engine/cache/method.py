"""Cache methods: how a text's keys and values are kept and read. The base class keeps all."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reference.op import Array

if TYPE_CHECKING:
    from engine.cache.cells import Cells

NEVER = 2**31 - 1  # larger than any position


@dataclass(frozen=True, slots=True)
class Step:
    """A step's tokens: their `cells` int32 [tokens], attention `spans` int32 [tokens, 3], and
    positions; `inputs` are the names of the step's inputs."""

    inputs: Collection[str]
    cells: Array
    spans: Array
    positions: Array


class CacheMethod:
    """Keeps and reads everything. Subclasses override hooks:
    engine/cache/{eviction,pages,sparse_prefill,streaming,two_bits,merged}.py.

    Cells call the hooks when sequences change, a step asks for its `inputs`, and prefill calls
    `begin` and `finish`.

    evicts      whether cells are freed after prefill
    ends_prefill        whether a step that ends a prefill may not contain later tokens of the text
    observers   last tokens of a prompt that must be evaluated even if they are cached
    stretch     tokens of a prompt that a step must read (chunk size); 0: any number
    max_decode    most decode tokens of a sequence in a step; 0: any number
    """

    evicts = False
    ends_prefill = False
    observers = 0
    stretch = 0
    max_decode = 0
    cells: "Cells"

    # Prefill

    def begin(self, sequence: int, tokens: int) -> None:
        """A prompt of `tokens` will be prefilled into a sequence."""

    def prefill_from(self, sequence: int, held: int, tokens: int) -> None:
        """The sequence holds `held` of the prompt's tokens; the rest is read from here on."""

    def begin_full(self, sequence: int) -> None:
        """A text will be scored or embedded: its tokens need full attention."""

    def cells_needed(self, sequence: int) -> int:  # noqa: ARG002
        """Number of free cells that `finish` will need."""
        return 0

    def finish(self, sequence: int) -> None:
        """Prefill is complete."""

    # Sequences

    def on_copy(self, source: int, target: int, count: int) -> None:
        """`target`, which was empty, now shares the source's first `count` cells."""

    def on_move(self, sequence: int, slot: int) -> None:
        """The sequence's list has changed from index `slot` on."""

    def on_remove(self, sequence: int, begin: int, gone: Array) -> None:
        """Cells with positions from `begin` on will be removed: mask bool [length]. Raises
        ValueError if that is impossible."""

    def on_free(self, cells: Array) -> None:
        """These cells have no owner any more."""

    def on_clear(self) -> None:
        """All sequences were cleared."""

    def first(self, sequence: int, block: int) -> int:  # noqa: ARG002
        """Index in the sequence's list of the block's first cell."""
        return 0

    def seen(self, sequence: int, node: str, block: int) -> int:  # noqa: ARG002
        """Number of cells before this step's tokens that an attention node (by label) of the block
        can attend to."""
        return self.cells.lengths[sequence] - self.first(sequence, block)

    def held(self, block: int) -> int:  # noqa: ARG002
        """Number of cells that are in use in a block."""
        return self.cells.capacity - self.cells.free

    @property
    def rows(self) -> int:
        """Number of rows in a K or V cache."""
        return self.cells.capacity

    @property
    def packed(self) -> int:
        """Number of pages in use, or of rows of streaming heads, per block."""
        return 0

    def reach(self, sequence: int, end: int) -> int:  # noqa: ARG002
        """The last position up to `end` from which the sequence can be continued."""
        return end

    def shareable(self, sequence: int, end: int) -> int:
        """Like `reach`, for a different prompt with the same prefix."""
        return self.cells.reach(sequence, end)

    def max_shared(self, count: int, tokens: int) -> int:  # noqa: ARG002
        """How many of the first `count` tokens of a prompt may be shared with another sequence."""
        return count

    def is_decoding(self, sequence: int) -> bool:  # noqa: ARG002
        """Whether decode depends on the prompt's length: such a text is continued as it is."""
        return False

    def is_partial(self, sequence: int) -> bool:  # noqa: ARG002
        """Whether some of the sequence's tokens were read without full attention."""
        return False

    # Steps

    @property
    def persistent_inputs(self) -> dict[str, Array]:
        """The step's persistent inputs: cell lists and cell positions."""
        return {"lists": self.cells.lists, "cell_positions": self.cells.positions}

    def before_step(self) -> None:
        """Called before a step, before its tokens get cells."""

    def inputs(self, step: Step) -> Mapping[str, Array]:  # noqa: ARG002
        """The method's inputs for a step, by name."""
        return {}

    def after_step(self) -> None:
        """The step has succeeded."""

    def on_failure(self) -> None:
        """The step has failed."""

    # Sessions

    def session_fields(self, cells: Array) -> dict[str, Any]:  # noqa: ARG002
        """A session's header fields for sequence 0, whose `cells` it saves: `kv_policy` or
        `prompt_attention`, which identify the method, and its state."""
        return {}

    def rows_of(self, cells: Array, block: int, fields: Mapping[str, Any]) -> Array:  # noqa: ARG002
        """The rows of a block's cache that a session saves for these cells."""
        return cells

    def pages_of(self, cells: Array, fields: Mapping[str, Any]) -> Array:  # noqa: ARG002
        """The pages that a session saves for these cells."""
        return cells[:0]

    def restore(self, cells: Array, header: Mapping[str, Any]) -> None:
        """Restore sequence 0, with these cells, from a session's header."""
