"""The interface between timing and engines: contenders open a model and evaluate tokens; tests are
named as llama-bench names its tests."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.packages import lacking

Array = np.ndarray[Any, np.dtype[Any]]
VALUES = 64  # logits that a check stores, spread over the vocabulary


@dataclass(frozen=True, slots=True)
class Setup:
    """The same for all contenders: threads, context in tokens (shared by all sequences), most
    tokens in one step, KV cache format, most concurrent sequences. Sparse inference and memory
    budgets are for our engine only (engine.options.Options)."""

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
        """Settings of all contenders that differ from the defaults, e.g. kv_format=Q8_0."""
        usual = Setup(self.threads, self.context)
        names = ("batch", "kv_format", "ram_budget")
        changed = [name for name in names if getattr(self, name) != getattr(usual, name)]
        return ",".join(f"{name}={getattr(self, name)}" for name in changed)


@dataclass(frozen=True, slots=True)
class Check:
    """Proof that work was done: the argmax of the last logits, and some of their values."""

    argmax: int
    values: tuple[float, ...]

    @classmethod
    def of(cls, logits: Array) -> "Check":
        """The check of logits [vocab], which must be finite and not all the same."""
        if not np.isfinite(logits).all():
            raise ArithmeticError("the last logits are not finite")
        if np.ptp(logits) == 0:
            raise ArithmeticError("the last logits are all the same: no work was done")
        some = logits[:: max(1, len(logits) // VALUES)]
        return cls(int(np.argmax(logits)), tuple(map(float, some)))

    def nmse(self, other: "Check") -> float:
        """Squared error of these values over the other's variance; NaN where there is nothing to
        compare."""
        ours, theirs = np.array(self.values), np.array(other.values)
        if not len(theirs) or len(ours) != len(theirs):
            return math.nan
        return float(np.mean((ours - theirs) ** 2) / np.var(theirs))


class Contender(Protocol):
    """An engine with a model open, in its own child process.

    Sequences are numbered from 0. `vocab` is the number of token ids, `exact` whether it promises
    the same logits, bit for bit, however a prompt is split into steps.
    """

    vocab: int
    exact: bool

    def __init__(self, model: Path, setup: Setup) -> None:
        """Open the model, ready for use."""

    def hold(self, sequences: int, length: int) -> int:
        """Prepare for so many sequences and drop all but at most the first `length` tokens of
        sequence 0; returns how many are still in the cache."""

    def evaluate(self, tokens: Array, start: int) -> Array:
        """Evaluate tokens [sequences, n] at positions from `start`, at most `setup.batch` in one
        step; returns the logits after the last ones, float32 [sequences, vocab]."""

    def first_token(self, tokens: Sequence[int]) -> int:
        """The argmax after a prompt, from an empty cache."""

    @property
    def about(self) -> dict[str, str]:
        """Versions, and how the model runs; `sparse`, where neurons may be skipped."""

    def close(self) -> None:
        """Free the model."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender in the table: its class, required packages, and environment variables for its
    process."""

    home: str
    packages: Mapping[str, str]  # import name: distribution name
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
    """The missing packages, in one line; "" where all are installed."""
    if name not in CONTENDERS:
        raise ValueError(f"there is no contender {name!r}: {', '.join(CONTENDERS)}")
    packages = CONTENDERS[name].packages
    missing = [packages[module] for module in lacking(packages)]
    return f"{missing[0]} is not installed: docs/peers.md says how" if missing else ""


@dataclass(frozen=True, slots=True)
class EngineTest:
    """One thing to time; all sizes are in tokens, `parallel` in sequences.

    - pp: a prompt of `prompt` random tokens, after `depth` tokens that the cache holds already.
    - tg: `generate` steps of one token, after `depth`.
    - batched: `parallel` sequences, each with a prompt of its own, then `generate` steps of one
      token for each of them.
    - load: open the model's file, which the page cache holds, until it can be used.
    - first_token: in a loaded engine, from a prompt to the first token drawn.
    """

    kind: str
    prompt: int = 0
    generate: int = 0
    depth: int = 0
    parallel: int = 1

    @property
    def name(self) -> str:
        at = f" @ d{self.depth}" if self.depth else ""
        names = {
            "pp": f"pp{self.prompt}{at}",
            "tg": f"tg{self.generate}{at}",
            "batched": f"pp{self.prompt}+tg{self.generate} x{self.parallel}",
            "load": "load",
            "first_token": "first token (warm)",
        }
        return names[self.kind]

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of one sample, all sequences together."""
        return self.prompt * self.parallel

    @property
    def generate_tokens(self) -> int:
        """Generated tokens of one sample, all sequences together."""
        return self.generate * self.parallel

    @property
    def tokens(self) -> int:
        """Tokens processed by one sample: its rate is tokens / seconds. A load has none."""
        return self.prompt_tokens + self.generate_tokens

    @property
    def sequence(self) -> int:
        """Tokens of its longest sequence."""
        return self.depth + self.prompt + self.generate

    @property
    def context(self) -> int:
        """Cells of the cache that the test fills."""
        return self.depth + self.tokens
