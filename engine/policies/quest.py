"""Quest (Tang et al., arXiv 2406.10774): no eviction; each decode token attends to the pages whose
keys may matter most to it."""

from dataclasses import dataclass

from engine.errors import ModelError
from engine.policies.policy import check_fields


@dataclass(frozen=True, slots=True)
class Quest:
    """A decode token attends to pages of `page` cells, up to `budget` cells (at least three pages),
    its own page included; prefill, and the first `dense` blocks, attend to all.

    Query heads of a group add up their scores and select the same pages; with `apart` 1 each
    selects its own, as in the authors' code, whose models have no groups.
    """

    budget: int = 1024
    page: int = 16
    dense: int = 2
    apart: int = 0

    @property
    def chosen(self) -> int:
        """Number of pages that a token attends to."""
        return max(3, self.budget // self.page)

    def __post_init__(self) -> None:
        """Raise `ModelError` for invalid sizes."""
        check_fields(self)
        if self.page < 1 or self.budget < self.page:
            raise ModelError(
                f"Quest: budget is {self.budget} and page {self.page}: want page >= 1 and budget >="
                " page"
            )
        if self.apart > 1:
            raise ModelError(f"Quest: apart is {self.apart}: want 0 or 1")
