"""MInference: prompts are prefilled with sparse attention, in one fixed-size chunk (stretch) per
step, so that attention depends on the prompt alone (docs/decisions/045)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from engine.cache.method import CacheMethod, Step
from engine.passes.sparse_prompts import DENSE, PROMPT
from engine.policies.minference import MInference
from reference.op import Array


class SparsePrefill(CacheMethod):
    """Tokens of a sequence up to `prompt_to` are prefilled sparsely. The cells of its first
    `stretched` tokens (-1: not applicable) can be shared by prompts with the same prefix."""

    def __init__(self, policy: MInference, n_sequences: int) -> None:
        self.policy, self.stretch = policy, policy.stretch
        self.prompt_to = [0] * n_sequences
        self.stretched = [-1] * n_sequences

    def prefill_from(self, sequence: int, held: int, tokens: int) -> None:
        self.prompt_to[sequence], self.stretched[sequence] = tokens, held

    def begin_full(self, sequence: int) -> None:
        self.prompt_to[sequence], self.stretched[sequence] = 0, -1

    def on_copy(self, source: int, target: int, count: int) -> None:
        self.stretched[target] = min(self.stretched[source], count)

    def on_remove(self, sequence: int, begin: int, gone: Array) -> None:
        self.stretched[sequence] = min(self.stretched[sequence], begin)
        if gone.all():
            self.begin_full(sequence)

    def shareable(self, sequence: int, end: int) -> int:
        """Complete chunks only."""
        return max(0, min(end, self.stretched[sequence])) // self.stretch * self.stretch

    def max_shared(self, count: int, tokens: int) -> int:
        return min(count, tokens - 1) // self.stretch * self.stretch

    def is_decoding(self, sequence: int) -> bool:
        return self.stretched[sequence] >= 0

    def is_partial(self, sequence: int) -> bool:
        return self.stretched[sequence] >= 0

    def inputs(self, step: Step) -> dict[str, Array]:
        """Spans of sparse prefill tokens and of the others, each empty for the others."""
        if PROMPT not in step.inputs:
            return {}
        spans, prompt, dense = step.spans, step.spans.copy(), step.spans.copy()
        sparse = step.positions < np.array(self.prompt_to)[spans[:, 0]]
        prompt[~sparse, 2] = dense[sparse, 2] = 0
        if sparse.any():
            sequence, end = int(spans[sparse, 0][-1]), int(spans[sparse, 2][-1])
            if sparse.sum() == self.stretch and end == self.stretched[sequence] + self.stretch:
                self.stretched[sequence] = end
        return {PROMPT: prompt, DENSE: dense}

    def session_fields(self, cells: Array) -> dict[str, Any]:  # noqa: ARG002
        return {"prompt_attention": str(self.policy), "stretched": self.stretched[0]}

    def restore(self, cells: Array, header: Mapping[str, Any]) -> None:  # noqa: ARG002
        self.stretched[0] = header["stretched"]
