"""How far the engine's logits are from a peer's, and how far they may be."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance.llama.peers.checkpoint import QUANTISED, Checkpoint
from engine import Engine
from reference.op import Array

PROMISE = 1e-4
# Less is asked wherever less is possible: an epsilon misread by a factor of 1000 hides in 1e-4.
EXACT = 1e-10  # float32 on both sides, summed in another order
LIMITS = {
    # float weights are the same numbers to both; activations are int8 in the engine alone
    "transformers": {"F32": EXACT, "F16": EXACT, "BF16": EXACT, "Q8_0": PROMISE, "Q4_0": PROMISE},
    # rounds activations to the weights' format; the scales of int8 ones to F16
    "llama.cpp": {"F32": EXACT, "F16": 1e-6, "BF16": PROMISE, "Q8_0": PROMISE, "Q4_0": PROMISE},
}
CACHE_F16 = 1e-6  # both round keys and values to F16; llama.cpp also the queries and the weights


def limit(checkpoint: Checkpoint, peer: str, format: str) -> float:
    """What the NMSE may be; int8 activations cost as much again in each random layer."""
    layers = checkpoint.num_hidden_layers if format in QUANTISED else 1
    return LIMITS[peer][format] * layers


@dataclass(frozen=True, slots=True)
class Gap:
    """Normalised mean squared error, and mean KL divergence in nats, both from theirs to ours."""

    nmse: float
    divergence: float

    @classmethod
    def between(cls, ours: Array, theirs: Array) -> "Gap":
        """Logits [tokens, vocab]."""
        if ours.shape != theirs.shape:
            raise ValueError(f"our logits are {ours.shape}, the peer's {theirs.shape}")
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        p, q = log_probabilities(b), log_probabilities(a)
        return cls(nmse(ours, theirs), float(np.mean(np.sum(np.exp(p) * (p - q), axis=-1))))

    def within(self, limit: float) -> bool:
        """The limit is of the NMSE. The divergence is about half the mean squared error, which is
        the NMSE times the logits' mean square: 8 in the embedded model."""
        return self.nmse <= limit and self.divergence <= 4 * limit


def nmse(ours: Array, theirs: Array) -> float:
    """The squared errors as a share of the squares."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    return float(np.sum((a - b) ** 2) / np.sum(b**2))


def demand_near(ours: Array, theirs: Array, limit: float) -> None:
    gap = Gap.between(ours, theirs)
    assert gap.within(limit), gap


def log_probabilities(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def engine_logits(path: Path, tokens: Sequence[int], kv_format: str = "F32") -> Array:
    """The engine's logits after every token, float32 [tokens, vocab]."""
    with Engine.load(path, threads=2, kv_format=kv_format) as engine:
        return engine.logits(tokens)
