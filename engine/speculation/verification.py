"""Verification of drafts: the target's token, distributed as without a draft.

A draft without `q` is deterministic and needs no rule: the target's token is sampled as usual, and
the draft continues if it has that token. This equals accepting x with probability p(x) and
otherwise sampling from p without x, and with the same random numbers the text is exactly the one
without drafts.

Sampled drafts are accepted by modified rejection sampling, siblings one after the other (SpecInfer,
arXiv 2305.09781); `q[i]` must be the distribution of token i given its earlier siblings. Whether a
token is proposed must not depend on which token it is: a drafter that drops unlikely ones, or short
drafts, samples from a distribution other than its `q`. Nor may it share random numbers with the
verification, or use the same ones for many texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from engine.sampling.chain import Bind
from engine.sampling.params import Logits
from engine.sampling.sampler import Sampled, Sampler
from engine.speculation.drafter import Draft
from kernels.call import Run, bind
from kernels.table import variants
from reference.op import Array

OPS = ("accept", "recover", "pick")


@dataclass(frozen=True, slots=True)
class _Row:
    """p float64 [1, vocab], and the ops that read it; `recover` writes the other row."""

    p: Array
    accept: Run
    recover: Run
    pick: Run


class Verifier:
    """Rejection sampling for a vocabulary, with these kernels of `OPS`, bound once to its buffers;
    by default the preferred ones, certified or not. `drafts` is the drafter's sampler."""

    def __init__(
        self,
        vocab: int,
        kernels: Mapping[str, Bind] | None = None,
        drafts: Sampler | None = None,
    ) -> None:
        self._drafts = drafts
        kernels = kernels or {op: partial(bind, variants(op)[0]) for op in OPS}
        self._q, self._u = np.empty((1, vocab)), np.empty(1)
        self._token, self._accepted = np.zeros(1, np.int32), np.zeros(1, np.uint8)
        rows = np.empty((1, vocab)), np.empty((1, vocab))
        drafted = {"q": self._q, "tokens": self._token}
        self._rows = tuple(
            _Row(
                p,
                kernels["accept"]({"p": p, **drafted, "u": self._u}, {"accepted": self._accepted}),
                kernels["recover"]({"p": p, **drafted}, {"out": out}),
                kernels["pick"]({"p": p, "u": self._u}, {"tokens": self._token}),
            )
            for p, out in (rows, rows[::-1])
        )

    def begin(self, seed: int | None, length: int) -> None:
        """Reseed the drafter's sampler for a text of this seed and length, so that texts are not
        correlated through their drafts."""
        if self._drafts:
            self._drafts.reseed(seed, length)

    def choose(self, p: Array, tokens: Sequence[int], q: Array, random: np.random.Generator) -> int:
        """Sample a token distributed as p, one of the drafted `tokens` where possible.

        p float64 [vocab]; q float64 [drafted, vocab].
        """
        vocab = self._q.shape[1]
        _check_rows(p, (vocab,), "p")
        _check_rows(q, (len(tokens), vocab), "q")
        here, other = self._rows
        here.p[0] = p
        for token, drawn_from in zip(tokens, q, strict=True):
            if not 0 <= token < vocab:
                raise ValueError(f"token {token} is outside the vocabulary of {vocab}")
            self._q[0], self._token[0], self._u[0] = drawn_from, token, random.random()
            here.accept(1, (0,))
            if self._accepted[0]:
                return token
            here.recover(1, (0,))
            here, other = other, here
        self._u[0] = random.random()
        here.pick(1, (0,))
        return int(self._token[0])

    def sample(self, sampler: Sampler, logits: Logits, draft: Draft, node: int) -> Sampled:
        """The target's token after a node of the draft (-1: after the text), by a sampler that has
        accepted all tokens before. logits float32 [vocab]."""
        if draft.q is None:
            return sampler.sample(logits)
        p, nodes = sampler.distribution(logits), children(draft, node)
        tokens = [draft.tokens[child] for child in nodes]
        return sampler.result(self.choose(p, tokens, draft.q[nodes], sampler.random))


def children(draft: Draft, node: int) -> list[int]:
    """A node's children, in the order of the draft."""
    return [child for child, parent in enumerate(draft.parents) if parent == node]


def _check_rows(rows: Array, shape: tuple[int, ...], name: str) -> None:
    if rows.dtype != np.float64 or rows.shape != shape:
        got = f"{rows.dtype} {list(rows.shape)}"
        raise ValueError(f"{name}: want float64 {list(shape)}, got {got}")
