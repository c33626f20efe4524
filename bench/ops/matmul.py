"""Float32 products by NumPy's BLAS and by PyTorch, each in its own process: peers of `linear`."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.child import Child, settle
from bench.packages import lacking
from bench.race.experiment import Sampler

LIBRARIES = ("numpy", "torch")
ROWS = 61  # distinct rows of a weight, and rows that are checked
CHECKED = 1e-4  # relative to the largest output: far above rounding, far below a wrong product


@contextmanager
def matmuls(threads: int) -> Iterator[dict[str, Child]]:
    """A child for each installed library."""
    env = {f"{library}_NUM_THREADS": str(threads) for library in ("OPENBLAS", "OMP", "MKL")}
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Child("bench.ops.matmul:Product", name, threads, env=env))
            for name in LIBRARIES
            if not lacking([name])
        }


def sampler(child: Child, shape: dict[str, int], copies: int, calls: int) -> Sampler:
    """A sampler of seconds per call, `calls` to a sample, over `copies` of weight and
    activations."""
    child.ask("prepare", **shape, copies=copies)
    return lambda: float(child.ask("sample", calls=calls))


class Product:
    """The object in a child: x W^T, x float32 [tokens, hidden], W float32 [out, hidden]."""

    def __init__(self, name: str, threads: int) -> None:
        self._library, self._multiply = _library(name, threads)
        self._arrays: list[tuple[Any, Any, Any]] = []
        self._next = 0

    def prepare(self, tokens: int, hidden: int, out: int, copies: int) -> None:
        """Prepare this size."""
        import numpy as np

        rng = np.random.default_rng(0)
        x = rng.standard_normal((tokens, hidden), np.float32)
        w = np.resize(rng.standard_normal((ROWS, hidden), np.float32), (out, hidden))
        make = getattr(self._library, "from_numpy", np.asarray)
        self._arrays = [
            (make(x.copy()), make(w.copy()), make(np.empty((tokens, out), np.float32)))
            for _ in range(copies)
        ]
        self._next = 0
        self._multiply(*self._arrays[0])
        got, want = np.asarray(self._arrays[0][2])[0, :ROWS], w[:ROWS].astype(float) @ x[0]
        if not np.abs(got - want).max() <= CHECKED * np.abs(want).max():
            raise ArithmeticError("the product is wrong")
        settle()

    def sample(self, calls: int) -> float:
        """Seconds per call over so many, on the copies of the weight in turn."""
        turns = [self._arrays[(self._next + i) % len(self._arrays)] for i in range(calls)]
        self._next = (self._next + calls) % len(self._arrays)
        if len(self._arrays) == 1:
            self._multiply(*turns[0])  # hot means hot
        started = time.perf_counter()
        for x, w, out in turns:
            self._multiply(x, w, out)
        seconds = (time.perf_counter() - started) / calls
        settle()
        return seconds


def _library(name: str, threads: int) -> tuple[Any, Callable[[Any, Any, Any], Any]]:
    if name == "torch":
        import torch

        torch.set_num_threads(threads)
        return torch, lambda x, w, out: torch.mm(x, w.T, out=out)
    import numpy as np

    return np, lambda x, w, out: np.matmul(x, w.T, out=out)
