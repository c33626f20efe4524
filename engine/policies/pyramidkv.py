"""PyramidKV (Cai et al., arXiv 2406.02069): later blocks attend to fewer tokens, so they keep fewer
cells, and the first blocks more."""

from dataclasses import dataclass, field

from engine.errors import ModelError
from engine.policies.snapkv import SnapKV


@dataclass(frozen=True, slots=True)
class PyramidKV(SnapKV):
    """SnapKV with capacities that decrease from block to block. Other policies have `beta` too:
    H2O(capacity=1024, beta=20)."""

    beta: int = field(default=20, kw_only=True)

    def __post_init__(self) -> None:
        SnapKV.__post_init__(self)
        if not self.beta:
            raise ModelError("PyramidKV: beta is 0: want a number from 1 up, where 1 is SnapKV")
