"""The target's token where tokens were drafted: distributed as if there had been no draft.

A draft without `q` is deterministic and needs no rule: the target's token is drawn as ever, and
the draft goes on if it has that token. It is the same as accepting x with probability p(x) and
drawing from p without x otherwise, and with the same random numbers the text is the very one
without drafts.

Tokens drawn from distributions are accepted by modified rejection, siblings each in turn
(SpecInfer, arXiv 2305.09781), for which `q[i]` must be what token i was drawn from once its earlier
siblings were known. Whether a token is proposed at all must not depend on which token it is: a
drafter that drops the unlikely ones, or short drafts, draws from another distribution than it says.
Nor may its random numbers be those that verify, or the same for many texts.
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
    """The rule for a vocabulary, by these kernels of `OPS`, bound once over buffers of its own;
    without any, the preferred ones, certified or not. `drafts` is who draws them."""

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
        """Drafts for a text of this seed and length are next. Were they drawn alike for each text,
        texts would be alike beyond what the target says."""
        if self._drafts:
            self._drafts.of_another_text(seed, length)

    def choose(self, p: Array, tokens: Sequence[int], q: Array, random: np.random.Generator) -> int:
        """A token distributed as p, and one of the drafted `tokens` wherever that can be.

        p float64 [vocab]; q float64 [drafted, vocab].
        """
        vocab = self._q.shape[1]
        _demand(p, (vocab,), "p")
        _demand(q, (len(tokens), vocab), "q")
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
        """The target's token behind a node of the draft, or behind the text for -1, by a sampler
        that was told of all before and its random numbers. logits float32 [vocab]."""
        if draft.q is None:
            return sampler.sample(logits)
        p, behind = sampler.distribution(logits), children(draft, node)
        tokens = [draft.tokens[child] for child in behind]
        return sampler.chosen(self.choose(p, tokens, draft.q[behind], sampler.random))


def children(draft: Draft, node: int) -> list[int]:
    """The nodes that follow this one, in the order of the draft."""
    return [child for child, parent in enumerate(draft.parents) if parent == node]


def _demand(rows: Array, shape: tuple[int, ...], name: str) -> None:
    if rows.dtype != np.float64 or rows.shape != shape:
        got = f"{rows.dtype} {list(rows.shape)}"
        raise ValueError(f"{name}: want float64 {list(shape)}, got {got}")
