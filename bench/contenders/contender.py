"""The seam between what is timed and who runs it: contenders open a model and evaluate tokens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.packages import lacking

Array = np.ndarray[Any, np.dtype[Any]]
VALUES = 64  # of the last logits, those that a check keeps, spread over the vocabulary


@dataclass(frozen=True, slots=True)
class Setup:
    """The same for all contenders: threads, tokens of context (shared by all sequences), most
    tokens of one step, the format of the KV cache, most sequences at once. Only our engine knows
    how to skip neurons of a sparse model, and how to stay within a budget
    (engine.options.Options)."""

    threads: int
    context: int
    batch: int = 512
    kv_format: str = "F16"
    sequences: int = 1
    sparse: str = "auto"
    threshold: float | None = None
    union: bool = False
    ram_budget: str | int = 0
    neuron_window: int | None = None
    neuron_bundles: bool = True

    @property
    def settings(self) -> str:
        """What all contenders do in another way than usual, e.g. kv_format=Q8_0."""
        usual = Setup(self.threads, self.context)
        names = ("batch", "kv_format", "ram_budget")
        changed = [name for name in names if getattr(self, name) != getattr(usual, name)]
        return ",".join(f"{name}={getattr(self, name)}" for name in changed)


@dataclass(frozen=True, slots=True)
class Check:
    """Proof that work was done: of the last logits, where the largest is and some values."""

    argmax: int
    values: tuple[float, ...]

    @classmethod
    def of(cls, logits: Array) -> "Check":
        """Of logits [vocab], which must be finite and not all the same."""
        if not np.isfinite(logits).all():
            raise ArithmeticError("the last logits are not finite")
        if np.ptp(logits) == 0:
            raise ArithmeticError("the last logits are all the same: no work was done")
        some = logits[:: max(1, len(logits) // VALUES)]
        return cls(int(np.argmax(logits)), tuple(map(float, some)))

    def nmse(self, other: "Check") -> float:
        """How far these values are from the other's: the squared error over their variance; NaN
        where there is nothing to compare."""
        ours, theirs = np.array(self.values), np.array(other.values)
        if not len(theirs) or len(ours) != len(theirs):
            return math.nan
        return float(np.mean((ours - theirs) ** 2) / np.var(theirs))


class Contender(Protocol):
    """An engine with a model open; it lives in a child process of its own.

    Sequences are numbered from 0. `vocab` is the number of token ids, `exact` whether it promises
    the same logits, bit for bit, however a prompt is cut into steps.
    """

    vocab: int
    exact: bool

    def __init__(self, model: Path, setup: Setup) -> None:
        """Open the model, ready for use."""

    def hold(self, sequences: int, length: int) -> int:
        """Be ready for so many sequences and forget all but at most the first `length` tokens of
        sequence 0; gives how many it still holds."""

    def evaluate(self, tokens: Array, start: int) -> Array:
        """Take tokens [sequences, n] at positions from `start` into the cache, at most
        `setup.batch` in one step; float32 [sequences, vocab], the logits after the last ones."""

    def first_token(self, tokens: Sequence[int]) -> int:
        """The likeliest token after a prompt, in an empty cache."""

    @property
    def about(self) -> dict[str, str]:
        """Versions, and how the model runs; `sparse`, where neurons of it may be skipped."""

    def close(self) -> None:
        """Free the model."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table: where a contender's class is, the packages it cannot be without, and
    what its process wants to find in its environment."""

    home: str
    packages: Mapping[str, str]  # import name: what it is called where it is installed
    environment: Mapping[str, str]


OURS = "assay"
FAST = "assay fast"  # with numerics="fast": ours as well, where its kernels differ at all
CONTENDERS = {
    OURS: Entry("bench.contenders.assay:Assay", {}, {}),
    FAST: Entry("bench.contenders.assay:AssayFast", {}, {}),
    "llama.cpp": Entry(
        "bench.contenders.llama_cpp:LlamaCpp", {"llama_cpp": "llama-cpp-python"}, {}
    ),
    "transformers": Entry(
        "bench.contenders.transformers_cpu:Transformers",
        {name: name for name in ("torch", "transformers", "gguf", "accelerate")},
        {"HF_HUB_OFFLINE": "1"},
    ),
}


def present(name: str) -> str:
    """What is missing of the contender's packages, in one line; "" where all are installed."""
    if name not in CONTENDERS:
        raise ValueError(f"there is no contender {name!r}: {', '.join(CONTENDERS)}")
    packages = CONTENDERS[name].packages
    missing = [packages[module] for module in lacking(packages)]
    return f"{missing[0]} is not installed: docs/peers.md says how" if missing else ""
