"""Float32 products by NumPy's BLAS and by PyTorch, each in a process of its own: peers of `linear`.

As a child process it is asked {"tokens", "hidden", "out", "copies"} to be ready for that size, then
{"calls": n} for the seconds of one call in n, over as many copies of the weight in turn.
"""

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from bench.child import Child, serve
from bench.contenders.session import settle
from bench.timing import Sampler

PACKAGES = {"numpy": "numpy", "torch": "torch"}  # contender: what it cannot be without
ROWS = 61  # distinct ones of a weight, and those that are checked
CHECKED = 1e-4  # relative to the largest output: far above rounding, far below a wrong product


class Matmul:
    """A contender's process, ready for one size at a time."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        limit = {f"{library}_NUM_THREADS": str(threads) for library in ("OPENBLAS", "OMP", "MKL")}
        self._child = Child("bench.matmul", name, str(threads), env=limit)

    def sampler(self, shape: dict[str, int], copies: int, calls: int) -> Sampler:
        """Seconds of one call, `calls` to a sample, over `copies` of weight and activations."""
        self._child.ask({**shape, "copies": copies})
        return lambda: float(self._child.ask({"calls": calls})["seconds"])

    def close(self) -> None:
        self._child.close()


@contextmanager
def matmuls(threads: int) -> Iterator[list[Matmul]]:
    """Those that are installed."""
    with ExitStack() as stack:
        found = []
        for name, package in PACKAGES.items():
            if importlib.util.find_spec(package):
                found.append(Matmul(name, threads))
                stack.callback(found[-1].close)
        yield found


def absent() -> Sequence[tuple[str, str]]:
    """Those that are not, and why."""
    return [
        (name, f"{package} is not installed")
        for name, package in PACKAGES.items()
        if not importlib.util.find_spec(package)
    ]


class Product:
    """The child's work: x W^T, x float32 [tokens, hidden], W float32 [out, hidden]."""

    def __init__(self, library: Any, multiply: Callable[[Any, Any, Any], Any]) -> None:
        self._library, self._multiply = library, multiply
        self._arrays: list[tuple[Any, Any, Any]] = []
        self._next = 0

    def prepare(self, tokens: int, hidden: int, out: int, copies: int) -> dict[str, Any]:
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
        return {}

    def sample(self, calls: int) -> dict[str, Any]:
        turns = [self._arrays[(self._next + i) % len(self._arrays)] for i in range(calls)]
        self._next = (self._next + calls) % len(self._arrays)
        if len(self._arrays) == 1:
            self._multiply(*turns[0])  # hot means hot
        started = time.perf_counter()
        for x, w, out in turns:
            self._multiply(x, w, out)
        return {"seconds": (time.perf_counter() - started) / calls}


def main() -> None:
    """Arguments: the contender's name and its number of threads."""
    name, threads = sys.argv[1], int(sys.argv[2])
    products: list[Product] = []

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        if not products:
            products.append(Product(*_library(name, threads)))
        try:
            if "calls" in question:
                return products[0].sample(question["calls"])
            return products[0].prepare(**question)
        finally:
            settle()

    serve(answer)


def _library(name: str, threads: int) -> tuple[Any, Callable[[Any, Any, Any], Any]]:
    if name == "torch":
        import torch

        torch.set_num_threads(threads)
        return torch, lambda x, w, out: torch.mm(x, w.T, out=out)
    import numpy as np

    return np, lambda x, w, out: np.matmul(x, w.T, out=out)


if __name__ == "__main__":
    main()
