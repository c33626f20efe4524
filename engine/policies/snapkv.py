"""SnapKV (Li et al., arXiv 2404.14469): what the last tokens of a prompt look at is what the answer
will look at. Query heads of a group choose together, as in kvpress."""

from dataclasses import dataclass

from engine.errors import ModelError
from engine.graph import Graph, Value
from engine.policies.policy import Block, Policy


@dataclass(frozen=True, slots=True)
class SnapKV(Policy):
    """The last `window` cells, and those that they give the most attention: its mean over `kernel`
    neighbours."""

    window: int = 32
    kernel: int = 5

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        if self.window < 1 or self.kernel % 2 == 0:
            raise ModelError(
                f"SnapKV: window is {self.window} and kernel {self.kernel}: want tokens that"
                " observe, and an odd number of neighbours"
            )

    @property
    def last(self) -> int:
        return self.window

    @property
    def observers(self) -> int:
        return self.window

    def scores(self, graph: Graph, block: Block) -> Value:
        return graph(
            "pool_scores",
            f"{block.name}.pooled",
            scores=block.received,
            size=self.kernel,
            last=self.window,
        )
