"""The matrix of kernels and machines.

- "refused": its trial failed there.
- "fast": it passed, and is an engine's first choice there for its op, target, format and
  numerics, in steps of few tokens or of many.
- "proved": it passed, and another is chosen.

A kernel whose requirements a machine lacks has no state there.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from kernels.certificates import Certificate
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.table import EVERY, of_packages

if TYPE_CHECKING:
    import pandas as pd

State = Literal["fast", "proved", "refused"]
ORDER: tuple[State, ...] = ("refused", "proved", "fast")  # the first counts where machines differ


def states(certificates: Iterable[Certificate]) -> dict[str, State]:
    """States of a machine's kernels by name."""
    found: dict[str, State] = {}
    first: dict[tuple[object, ...], str] = {}
    by_name = {certificate.kernel: certificate for certificate in certificates}
    for name, certificate in by_name.items():
        found[name] = "proved" if certificate.passed else "refused"
    for kernel in (*EVERY, *of_packages()):  # in the order of engines' preference
        if found.get(kernel.name) == "proved":
            serves = kernel.op, kernel.target, kernel.format, kernel.numerics
            first.setdefault((*serves, "many"), kernel.name)
            if isinstance(kernel, CudaKernel) or kernel.fewest == 1:
                first.setdefault((*serves, "few"), kernel.name)
    return found | dict.fromkeys(first.values(), "fast")


@dataclass(slots=True)
class Matrix:
    """Kernels by kinds of machine, however many machines there are of each: memory holds a count
    for each state of a kernel on a kind."""

    counts: dict[tuple[str, str], Counter[State]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)  # of a kind, for display

    def add(self, kind: str, device: str, found: Mapping[str, State]) -> None:
        """Add the states of one more machine of a kind; `device` is its common name."""
        self.names.setdefault(kind, device)
        for kernel, state in found.items():
            self.counts.setdefault((kernel, kind), Counter())[state] += 1

    def state(self, kernel: str, kind: str) -> State | None:
        """The kernel's state there; the worst where machines of a kind differ."""
        counts = self.counts.get((kernel, kind), Counter())
        return next((state for state in ORDER if counts[state]), None)

    def differing(self) -> list[tuple[str, str, dict[State, int]]]:
        """Kernels on which machines of one kind disagree, with counts: a broken machine, or a trial
        that depends on chance."""
        refused = ((key, c) for key, c in self.counts.items() if c["refused"] < c.total())
        return [(*key, dict(c)) for key, c in sorted(refused, key=str) if c["refused"]]

    def frame(self) -> "pd.DataFrame":
        """A row for each kernel, a column for each kind, "" where a kernel does not run."""
        import pandas as pd

        kernels = sorted({kernel for kernel, _ in self.counts})
        columns = {
            kind: [self.state(kernel, kind) or "" for kernel in kernels] for kind in self.names
        }
        return pd.DataFrame(columns, index=pd.Index(kernels, name="kernel"), dtype=object)

    def summary(self) -> list[dict[str, Any]]:
        """For each kind, the number of kernels in each state."""
        found: list[dict[str, Any]] = []
        for kind, device in self.names.items():
            told = Counter(self.state(kernel, own) for kernel, own in self.counts if own == kind)
            most = max(c.total() for (_, own), c in self.counts.items() if own == kind)
            row: dict[str, Any] = {"machine": kind, "device": device, "machines": most}
            found.append(row | {state: told[state] for state in reversed(ORDER)})
        return found
