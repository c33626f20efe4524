"""MiniCache (Liu et al., arXiv 2405.14366): from the middle on pairs of blocks share a cache."""

from dataclasses import dataclass

from engine.errors import ModelError
from engine.policies.policy import demand_numbers
from reference.formats.minicache import GROUP


@dataclass(frozen=True, slots=True)
class MiniCache:
    """No token is dropped: once a prompt has been read, keys and values of two adjacent blocks have
    one direction between theirs, `towards` per cent of the way from the lower to the upper, and a
    length each; so have an answer's, when at least `recent` tokens are younger. Of each 256 tokens
    `retained` per cent, rounded up, whose directions are furthest apart stay as they are, by head.

    The pairs begin with the block `start`; 0 is the middle one, or the next if an odd number of
    blocks would be left.
    """

    retained: int = 5
    towards: int = 60
    recent: int = 128
    start: int = 0

    @property
    def kept(self) -> int:
        """How many of a page's tokens are retained for each head."""
        return -(-self.retained * GROUP // 100)

    def first(self, blocks: int) -> int:
        """The block with which the pairs begin, of so many."""
        middle = blocks // 2
        first = self.start or middle + (blocks - middle) % 2
        if self.start >= blocks:
            raise ModelError(
                f"kv_policy MiniCache: start is {first}, and the model has {blocks} blocks"
            )
        if (left := blocks - first) < 2 or left % 2:
            raise ModelError(
                f"kv_policy MiniCache: the model has {blocks} blocks, of which {left} from {first}"
                " on make no pairs"
            )
        return first

    def __post_init__(self) -> None:
        """Raise ModelError for what is no number, or no share."""
        demand_numbers(self)
        for name in ("retained", "towards"):
            if (value := getattr(self, name)) > 100:
                raise ModelError(f"MiniCache: {name} is {value}: want per cent, 100 at most")
        if self.recent < 1:
            raise ModelError("MiniCache: recent is 0: want the token itself at least")
