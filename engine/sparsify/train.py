"""Trains predictors of a ReLU model's active neurons with PyTorch.

A predictor has no bias and a file has one threshold, so the decision border is moved by scaling:
logits are trained against 1, and fc2 is divided by the border that gives the wanted recall.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import cos, pi

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, relu

from engine.progress import ProgressCallback
from engine.sparsify.export import Predictor
from engine.sparsify.gather import Block
from reference.op import Array

THRESHOLD = 1.0
SHARPNESS = 4.0  # log-odds of a logit of 1: nearly all borders stay above 0
LEAST_BORDER = 1 / 16
LEAST_RANK = 32  # of the ladder, whose steps double: rows are whole blocks in every plain format
MOST_HELD_OUT = 2**14  # tokens
CHUNK = 512  # tokens


@dataclass(frozen=True, slots=True)
class Training:
    """Training parameters: `rank` 0 climbs the ladder until `recall` is reached."""

    recall: float = 0.95
    rank: int = 0
    steps: int = 1500
    tokens: int = 512  # a step
    rate: float = 4e-3
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """Counts of held-out (token, neuron) pairs: `pairs` in all, those that are `active`, those
    `predicted`, and those that are both, `right`."""

    pairs: int
    active: int
    predicted: int
    right: int

    @property
    def active_share(self) -> float:
        return self.active / self.pairs

    @property
    def predicted_share(self) -> float:
        return self.predicted / self.pairs

    @property
    def recall(self) -> float:
        """Share of active pairs that are predicted; 1 where nothing is active."""
        return self.right / self.active if self.active else 1.0

    @property
    def precision(self) -> float:
        """Share of predicted pairs that are active; 1 where nothing is predicted."""
        return self.right / self.predicted if self.predicted else 1.0


def ladder(hidden: int) -> list[int]:
    """The ranks tried: 32, 64, ... below the hidden size, and at least one."""
    ranks = [LEAST_RANK << i for i in range(hidden.bit_length()) if LEAST_RANK << i < hidden]
    return ranks or [LEAST_RANK]


def train(
    block: Block,
    held_out: Array,
    training: Training,
    progress: ProgressCallback | None = None,
) -> tuple[Predictor, Judged]:
    """The block's predictor and its quality on the tokens of `held_out`, bool [tokens].

    The rank is the smallest of the ladder whose predictor reaches the recall at its training
    border; then the border moves to give the wanted recall. `progress` receives the rank and the
    steps done.
    """
    learned, judged = np.flatnonzero(~held_out), _spread(np.flatnonzero(held_out), MOST_HELD_OUT)
    predictor = None
    for rank in [training.rank] if training.rank else ladder(block.inputs.shape[1]):
        predictor = _fit(block, learned, rank, training, progress)
        if judge(block, judged, predictor, THRESHOLD).recall >= training.recall:
            break
    assert predictor is not None
    border = _border(block, judged, predictor, training.recall)
    scaled = Predictor(predictor.fc1, (predictor.fc2 * (THRESHOLD / border)).astype(np.float32))
    scaled = scaled.rounded()
    return scaled, judge(block, judged, scaled, THRESHOLD)


def _spread(tokens: Array, most: int) -> Array:
    """At most so many of them, evenly spaced."""
    return tokens if len(tokens) <= most else tokens[:: -(-len(tokens) // most)]


def _fit(
    block: Block,
    tokens: Array,
    rank: int,
    training: Training,
    progress: ProgressCallback | None,
) -> Predictor:
    """AdamW on the cross entropy, with active neurons weighted to balance the others."""
    rng = np.random.default_rng([training.seed, rank])
    sample = rng.choice(tokens, size=min(len(tokens), 4096), replace=False)
    sample.sort()
    size = np.sqrt(np.square(block.inputs[sample], dtype=np.float64).mean(axis=0)) + 1e-12
    share = np.clip(block.active(sample).mean(), 1e-4, 0.5)
    weight = torch.tensor((1 - share) / share, dtype=torch.float32)
    hidden = len(size)
    fc1 = torch.from_numpy(rng.standard_normal((rank, hidden), np.float32) * hidden**-0.5)
    fc2 = torch.from_numpy(rng.standard_normal((block.ffn, rank), np.float32) * rank**-0.5)
    scale = torch.from_numpy((1 / size).astype(np.float32))
    matrices = [fc1.requires_grad_(), fc2.requires_grad_()]
    optimiser = torch.optim.AdamW(matrices, lr=training.rate, weight_decay=0.01)
    for step in range(training.steps):
        chosen = np.sort(rng.choice(tokens, size=min(training.tokens, len(tokens)), replace=False))
        wanted = torch.from_numpy(block.active(chosen).astype(np.float32))
        inputs = torch.from_numpy(block.inputs[chosen]) * scale
        logits = relu(inputs @ fc1.T) @ fc2.T
        loss = binary_cross_entropy_with_logits(
            SHARPNESS * (logits - THRESHOLD), wanted, pos_weight=weight
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.param_groups[0]["lr"] = training.rate * (1 + cos(pi * step / training.steps)) / 2
        optimiser.step()
        if progress:
            progress(rank, step + 1)
    with torch.no_grad():
        return Predictor((fc1 * scale).numpy(), fc2.numpy().copy())


def _border(block: Block, tokens: Array, predictor: Predictor, recall: float) -> float:
    """The logit that a share `recall` of the active pairs reaches, or the least border that scaling
    can move to the threshold."""
    found = [logits[active] for logits, active in _logits(block, tokens, predictor)]
    reached = np.sort(np.concatenate([np.zeros(0, np.float32), *found]))
    if not len(reached):
        return THRESHOLD
    return max(LEAST_BORDER, float(reached[int((1 - recall) * len(reached))]))


def judge(block: Block, tokens: Array, predictor: Predictor, threshold: float) -> Judged:
    """Count active and predicted pairs of these tokens."""
    counts = np.zeros(4, np.int64)
    for logits, active in _logits(block, tokens, predictor):
        predicted = logits >= threshold
        counts += [active.size, active.sum(), predicted.sum(), (active & predicted).sum()]
    return Judged(*counts.tolist())


def _logits(block: Block, tokens: Array, predictor: Predictor) -> Iterator[tuple[Array, Array]]:
    """Logits and activity, some tokens at a time."""
    parts: Sequence[Array] = [tokens[i : i + CHUNK] for i in range(0, len(tokens), CHUNK)]
    for part in parts:
        yield predictor.logits(np.asarray(block.inputs[part])), block.active(part)
