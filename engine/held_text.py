"""The text whose cells a model's cache holds, in sequence 0, and how it goes on."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from engine.model import Model
from engine.timings import Span
from kernels.call import call
from kernels.kernel import Kernel

Array = np.ndarray[Any, np.dtype[Any]]


class HeldText:
    """`held` are the tokens whose cells the cache has; `drawn` is the one behind them, until a step
    reads it."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.held: list[int] = []
        self.drawn: list[int] = []

    def read(
        self, prompt: Sequence[int], span: Span, log_sum_exp: Kernel | None = None
    ) -> tuple[Array, tuple[float | None, ...] | None]:
        """Hold a prompt, of which only what is not held yet is evaluated: the last logits [vocab]
        and, where there is a kernel for it, the log-probability of each of its tokens."""
        shared = 0 if log_sum_exp else self._shared(prompt)
        self._model.cells.remove(0, begin=shared)
        self.held, self.drawn = self.held[:shared], []
        logprobs: list[float | None] = [None]

        def score(logits: Array) -> None:
            assert log_sum_exp
            following = prompt[len(logprobs) : len(logprobs) + len(logits)]
            for row, token in zip(logits, following, strict=False):
                total = call(log_sum_exp, {"logits": row})["out"][0]
                logprobs.append(float(row[token] - total))

        each = score if log_sum_exp else None
        with span.measure(len(prompt) - shared):
            row = self._model.evaluate(
                prompt[shared:], shared, every=each is not None, each=each
            ).copy()
        self.held = list(prompt)
        return row, tuple(logprobs) if log_sum_exp else None

    def _shared(self, prompt: Sequence[int]) -> int:
        """How many tokens of the prompt need no evaluation; the last one always does."""
        most = min(len(self.held), len(prompt) - 1)
        return next((i for i in range(most) if self.held[i] != prompt[i]), most)

    def go_on(self, token: int) -> None:
        """A step has read the token that was drawn."""
        self.held.append(token)
        self.drawn = []

    def shift(self, keep: int) -> None:
        """Forget the older half beyond the first `keep` tokens; evaluate the rest anew."""
        forget = max(1, (len(self.held) - keep) // 2)
        kept = self.held[:keep] + self.held[keep + forget :]
        self.clear()
        if kept:
            self._model.evaluate(kept, 0)
        self.held = kept

    def clear(self) -> None:
        """Forget what the cache holds."""
        self._model.cells.clear()
        self.held, self.drawn = [], []
