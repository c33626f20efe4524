"""MiniCache (Liu et al., arXiv 2405.14366): pairs of blocks in the upper half share a KV cache."""

from dataclasses import dataclass

from engine.errors import ModelError
from engine.policies.policy import check_fields
from reference.formats.minicache import GROUP


@dataclass(frozen=True, slots=True)
class MiniCache:
    """No token is dropped: after prefill, the keys and values of two adjacent blocks share a
    direction between theirs (`towards` per cent of the way from the lower block's to the upper's)
    and keep their own magnitudes; decoded tokens follow once `recent` tokens come after them. Of
    each 256 tokens, `retained` per cent (rounded up) with the largest angles stay unmerged, per
    head.

    Pairs begin with block `start`; 0 is the middle one, or the next if the rest would be odd.
    """

    retained: int = 5
    towards: int = 60
    recent: int = 128
    start: int = 0

    @property
    def kept(self) -> int:
        """Number of unmerged tokens in a page, per head."""
        return -(-self.retained * GROUP // 100)

    def first(self, blocks: int) -> int:
        """Index of the first block of the pairs, in a model with this many blocks."""
        middle = blocks // 2
        first = self.start or middle + (blocks - middle) % 2
        if self.start >= blocks:
            raise ModelError(
                f"kv_policy MiniCache: start is {first}, and the model has {blocks} blocks"
            )
        if (left := blocks - first) < 2 or left % 2:
            raise ModelError(
                f"kv_policy MiniCache: the model has {blocks} blocks: the {left} from {first} on do"
                " not form pairs"
            )
        return first

    def __post_init__(self) -> None:
        """Raise `ModelError` for invalid parameters."""
        check_fields(self)
        for name in ("retained", "towards"):
            if (value := getattr(self, name)) > 100:
                raise ModelError(f"MiniCache: {name} is {value}: want per cent, at most 100")
        if self.recent < 1:
            raise ModelError("MiniCache: recent is 0: want at least 1")
