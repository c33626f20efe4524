"""Quest (Tang et al., arXiv 2406.10774): nothing is evicted, and each token of an answer reads the
pages whose keys may matter most to it."""

from dataclasses import dataclass

from engine.errors import ModelError
from engine.policies.policy import demand_numbers


@dataclass(frozen=True, slots=True)
class Quest:
    """Of the pages of `page` cells `budget` cells' worth, three at least, the one that a token
    stands in always among them; prompts, and the first `dense` blocks, read all.

    Query heads that share a head of keys add up their scores and read the same pages, or with
    `apart` 1 each its own, as the authors' code has it: their models share none.
    """

    budget: int = 1024
    page: int = 16
    dense: int = 2
    apart: int = 0

    @property
    def chosen(self) -> int:
        """Pages that a token reads."""
        return max(3, self.budget // self.page)

    def __post_init__(self) -> None:
        """Raise ModelError for what is no number, or none of pages."""
        demand_numbers(self)
        if self.page < 1 or self.budget < self.page:
            raise ModelError(
                f"Quest: budget is {self.budget} and page {self.page}: want a page of a cell or"
                " more at least"
            )
        if self.apart > 1:
            raise ModelError(f"Quest: apart is {self.apart}: want 0 or 1")
