"""SnapKV (Li et al., arXiv 2404.14469): the last tokens of a prompt attend to what the answer will
need. Query heads of a group select together, as in kvpress."""

from dataclasses import dataclass

from engine.errors import ModelError
from engine.graph import Graph, Value
from engine.policies.policy import Block, Policy


@dataclass(frozen=True, slots=True)
class SnapKV(Policy):
    """Keeps the last `window` cells, and those that receive most of their attention, averaged over
    `kernel` neighbours."""

    window: int = 32
    kernel: int = 5

    def __post_init__(self) -> None:
        Policy.__post_init__(self)
        if self.window < 1 or self.kernel % 2 == 0:
            raise ModelError(
                f"SnapKV: window is {self.window} and kernel {self.kernel}: want window >= 1 and an"
                " odd kernel"
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
