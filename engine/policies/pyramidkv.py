"""PyramidKV (Cai et al., arXiv 2406.02069): later blocks look at fewer and fewer tokens, so
that they keep fewer, and the first ones more."""

from dataclasses import dataclass, field

from engine.errors import ModelError
from engine.policies.snapkv import SnapKV


@dataclass(frozen=True, slots=True)
class PyramidKV(SnapKV):
    """SnapKV with numbers of cells that fall from block to block. Any other policy has them by its
    own `beta`: H2O(capacity=1024, beta=20)."""

    beta: int = field(default=20, kw_only=True)

    def __post_init__(self) -> None:
        SnapKV.__post_init__(self)
        if not self.beta:
            raise ModelError("PyramidKV: beta is 0: want a number from 1 up, where 1 is SnapKV")
