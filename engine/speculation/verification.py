"""The target's token where tokens were drafted: distributed as if there had been no draft.

A draft without `q` is deterministic and needs no rule: the target's token is drawn as ever, and
the draft goes on if it has that token. It is the same as accepting x with probability p(x) and
drawing from p without x otherwise, and with the same random numbers the text is the very one
without drafts.

Tokens drawn from distributions are accepted by modified rejection, siblings each in turn
(SpecInfer, arXiv 2305.09781), for which `q[i]` must be what token i was drawn from once its earlier
siblings were known. Whether a token is proposed at all must not depend on which token it is: a
drafter that drops the unlikely ones, or short drafts, draws from another distribution than it says.
Nor may its random numbers be those that verify.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.sampler import Bind, Sampled, Sampler
from engine.sampling_params import Logits
from engine.speculation.drafter import TEXT, Draft
from kernels.call import bind
from kernels.table import variants

Array = np.ndarray[Any, np.dtype[Any]]

OPS = ("accept", "recover", "exclude", "pick")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The accepted nodes, from the text on, and the token behind the last of them: recovered where
    a draft was rejected, else the bonus of a draft that was accepted to its end."""

    nodes: tuple[int, ...]
    token: int


class Verifier:
    """The rule, by these kernels of `OPS`; without any, the preferred ones, certified or not."""

    def __init__(self, kernels: Mapping[str, Bind] | None = None) -> None:
        self._kernels = kernels or {op: partial(bind, variants(op)[0]) for op in OPS}

    def choose(
        self, p: Array, tokens: Sequence[int], q: Array | None, random: np.random.Generator
    ) -> int:
        """A token distributed as p, and one of the drafted `tokens` wherever that can be.

        p float64 [vocab]; q float64 [drafted, vocab], None if the draft is deterministic.
        """
        _demand(p, (p.size,), "p")
        if q is None:
            return self._pick(p[np.newaxis], random)
        _demand(q, (len(tokens), p.size), "q")
        left = p[np.newaxis]
        for token, row in zip(tokens, q, strict=True):
            if not 0 <= token < p.size:
                raise ValueError(f"token {token} is outside the vocabulary of {p.size}")
            drafted = {"p": left, "q": row[np.newaxis], "tokens": np.array([token], np.int32)}
            accepted = np.empty(1, np.uint8)
            self._run("accept", {**drafted, "u": _uniform(random)}, accepted=accepted)
            if accepted[0]:
                return token
            out = np.empty_like(left)
            self._run("recover", drafted, out=out)
            left = out
        return self._pick(left, random)

    def verify(self, draft: Draft, p: Array, random: np.random.Generator) -> Outcome:
        """How far the target goes along a draft.

        p float64 [nodes + 1, vocab]: what the target draws from behind the text, then behind each
        node. Where p is certain of one token, as a greedy target is, so is the outcome.
        """
        _demand(p, (len(draft) + 1, p.shape[-1]), "p")
        nodes: list[int] = []
        at = TEXT
        while True:
            behind = children(draft, at)
            drafted = [draft.tokens[node] for node in behind]
            token = self.choose(p[1 + at], drafted, _rows(draft, behind), random)
            if token not in drafted:
                return Outcome(tuple(nodes), token)
            at = behind[drafted.index(token)]
            nodes.append(at)

    def sample(self, sampler: Sampler, logits: Logits, draft: Draft, node: int) -> Sampled:
        """The target's token behind a node of the draft, or behind the text for -1, by a sampler
        that was told of all before and its random numbers. logits float32 [vocab]."""
        if draft.q is None:
            return sampler.sample(logits)
        p, behind = sampler.distribution(logits), children(draft, node)
        tokens = [draft.tokens[child] for child in behind]
        return sampler.chosen(self.choose(p, tokens, _rows(draft, behind), sampler.random))

    def siblings(
        self, q: Array, count: int, random: np.random.Generator
    ) -> tuple[list[int], Array]:
        """At most so many different tokens drawn from q float64 [vocab] in turn, and what each was
        drawn from, float64 [drawn, vocab]; fewer if q has no more."""
        tokens: list[int] = []
        rows: list[Array] = []
        left = q[np.newaxis]
        while len(tokens) < count and left.any():
            tokens.append(self._pick(left, random))
            rows.append(left[0])
            out = np.empty_like(left)
            self._run("exclude", {"p": left, "tokens": np.array(tokens[-1:], np.int32)}, out=out)
            left = out
        return tokens, np.array(rows).reshape(len(tokens), q.size)

    def _pick(self, p: Array, random: np.random.Generator) -> int:
        token = np.empty(1, np.int32)
        self._run("pick", {"p": p, "u": _uniform(random)}, tokens=token)
        return int(token[0])

    def _run(self, op: str, inputs: dict[str, Array], **outputs: Array) -> None:
        self._kernels[op](inputs, outputs)(1, (0,))


def children(draft: Draft, node: int) -> list[int]:
    """The nodes that follow this one, in the order of the draft."""
    return [child for child, parent in enumerate(draft.parents) if parent == node]


def _rows(draft: Draft, nodes: Sequence[int]) -> Array | None:
    return None if draft.q is None else draft.q[list(nodes)]


def _uniform(random: np.random.Generator) -> Array:
    return np.array([random.random()])


def _demand(rows: Array, shape: tuple[int, ...], name: str) -> None:
    if rows.dtype != np.float64 or rows.shape != shape:
        got = f"{rows.dtype} {list(rows.shape)}"
        raise ValueError(f"{name}: want float64 {list(shape)}, got {got}")
