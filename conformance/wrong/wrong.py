"""What a wrong kernel is, and how it comes before the judge."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.call import Run
from kernels.judge import Candidate, Verdict, judge
from reference.op import Arguments, Array
from reference.table import OPS

# Does the shares of some threads, in some order: inputs, outputs, n_threads, order.
Act = Callable[[Arguments, Mapping[str, Array], int, Sequence[int]], None]


@dataclass(frozen=True, slots=True)
class Wrong:
    """One kernel that should fail: the op and format it pretends to do, and what it does."""

    op: str
    name: str
    act: Act
    format: str | None = None
    activations: str = "float32"

    def __str__(self) -> str:
        return "/".join(filter(None, (self.op, "wrong", self.name, self.format)))

    def candidate(self) -> Candidate:
        def bind(inputs: Arguments, outputs: Mapping[str, Array]) -> Run:
            def run(n_threads: int = 1, order: Sequence[int] = (0,)) -> None:
                with np.errstate(all="ignore"):
                    self.act(inputs, outputs, n_threads, order)

            return run

        return Candidate(str(self), OPS[self.op], bind, self.activations)

    def first_rejection(self) -> Verdict | None:
        """The verdict on the first of the op's quick cases that it fails."""
        candidate = self.candidate()
        for case in OPS[self.op].quick_cases(self.format):
            verdict = judge(candidate, case)
            if not verdict.passed:
                return verdict
        return None


def computing(function: Callable[..., Any]) -> Act:
    """Store what a function with the reference's parameters gives."""

    def act(
        inputs: Arguments, outputs: Mapping[str, Array], n_threads: int, order: Sequence[int]
    ) -> None:
        result = function(**inputs)
        results = result if isinstance(result, tuple) else (result,)
        for out, value in zip(outputs.values(), results, strict=True):
            out[...] = value

    return act
