"""Scoring requests: read a text and collect logits (or hidden states) for its tokens, without
generating."""

from collections.abc import Sequence
from typing import Protocol

from engine.sampling.sampler import Argmax, Row
from kernels.call import call
from kernels.kernel import Kernel
from reference.op import Array


class Reading(Protocol):
    """A text to read, and where its rows go: for each of `tokens` from index `first` on, the logits
    [vocab] or, with `hidden`, the hidden states [hidden]."""

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def first(self) -> int: ...

    @property
    def hidden(self) -> bool: ...

    def reset(self) -> None:
        """Reset: the text will be read from the start."""

    def receive(self, rows: Array | Sequence[Row]) -> None:
        """Receive the next rows, which are valid during this call."""


class Likelihoods:
    """Collects the natural log-probability of each token after index `first`, and whether all were
    the most likely. The last token is not evaluated."""

    hidden = False

    def __init__(self, text: Sequence[int], first: int, log_sum_exp: Kernel) -> None:
        self._text, self.first, self._log_sum_exp = text, first, log_sum_exp
        self.reset()

    @property
    def tokens(self) -> Sequence[int]:
        return self._text[:-1]

    def reset(self) -> None:
        self.logprobs: list[float] = []
        self.is_greedy = True

    def receive(self, rows: Array | Sequence[Row]) -> None:
        begin = self.first + 1 + len(self.logprobs)
        following = self._text[begin : begin + len(rows)]
        for row, token in zip(rows, following, strict=False):  # the last one has no next token
            assert not isinstance(row, Argmax)
            total = call(self._log_sum_exp, {"logits": row})["out"][0]
            self.logprobs.append(float(row[token] - total))
            self.is_greedy = self.is_greedy and int(row.argmax()) == token
