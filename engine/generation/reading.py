"""Texts that are read for what a step gives behind their tokens, and not gone on with."""

from collections.abc import Sequence
from typing import Protocol

from engine.sampling.sampler import Argmax, Row
from kernels.call import call
from kernels.kernel import Kernel
from reference.op import Array


class Reading(Protocol):
    """What is wanted of a text: a row behind each of `tokens` from number `first` on, the logits
    [vocab] or, with `hidden`, what they are computed from [hidden]."""

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def first(self) -> int: ...

    @property
    def hidden(self) -> bool: ...

    def begin(self) -> None:
        """Nothing is read yet, or all of it will be read anew."""

    def take(self, rows: Array | Sequence[Row]) -> None:
        """The next rows, which are valid until this returns."""


class Likelihoods:
    """The natural log-probability of each token of a text behind number `first`, and whether each
    is the likeliest there. Of the last token nothing follows: it need not be read."""

    hidden = False

    def __init__(self, text: Sequence[int], first: int, log_sum_exp: Kernel) -> None:
        self._text, self.first, self._log_sum_exp = text, first, log_sum_exp
        self.begin()

    @property
    def tokens(self) -> Sequence[int]:
        return self._text[:-1]

    def begin(self) -> None:
        self.logprobs: list[float] = []
        self.is_greedy = True

    def take(self, rows: Array | Sequence[Row]) -> None:
        begin = self.first + 1 + len(self.logprobs)
        following = self._text[begin : begin + len(rows)]
        for row, token in zip(rows, following, strict=False):  # behind the last one is none
            assert not isinstance(row, Argmax)
            total = call(self._log_sum_exp, {"logits": row})["out"][0]
            self.logprobs.append(float(row[token] - total))
            self.is_greedy = self.is_greedy and int(row.argmax()) == token
