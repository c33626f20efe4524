"""From logits to a token: bans, the chain of certified kernels, and what is remembered of the text.

Knows neither model nor tokenizer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from engine.sampling.chain import Bind, Chain, chain, first_variants
from engine.sampling.memory import Memory
from engine.sampling.params import Logits, SamplingError, SamplingParams
from reference.op import Array
from reference.samplers.mirostat import mirostat_mu


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token and its natural log-probability; `top` the most likely (token, logprob) pairs.

    Log-probabilities are those of the raw logits, before any ban, penalty, filter or temperature,
    as vLLM gives them by default.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Argmax:
    """What taking the most likely token wants to know of logits that are elsewhere: the token, and
    its log-probability."""

    token: int
    logprob: float


Row = np.ndarray[Any, np.dtype[np.float32]] | Argmax  # what a step knows of the next token


class Constraint(Protocol):
    """Says which tokens may come next."""

    def ban(self, logits: Logits) -> None:
        """Forbid the others, in logits [vocab]."""

    def accept(self, token: int) -> None:
        """The text goes on with this token."""


class Sampler:
    """Samples one sequence. The same seed, tokens and logits give the same tokens.

    `sample` draws; `accept` tells what token the text went on with, drawn or not. `prompt` is what
    stood before: penalties look at it, `min_tokens` and `bad_words` do not. `kernels` binds the ops
    of `needed_ops(params)`. Samplers of different `stream` have independent random numbers, even of
    one seed.

    `constraint`, once set, has the last word on which tokens may be drawn.

    Where something else draws, as in verifying drafts: `distribution`, `chosen`, then `accept`.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab: int,
        eog_ids: Iterable[int] = (),
        *,
        prompt: Sequence[int] = (),
        kernels: Mapping[str, Bind] | None = None,
        stream: tuple[int, ...] = (),
    ) -> None:
        self.params, self.vocab = params, vocab
        self._eog = sorted(eog_ids)
        self._check()
        self._memory = Memory(params, vocab, prompt, stream)
        kernels = first_variants(params) if kernels is None else kernels
        self._chain = Chain(params, self._memory, kernels)
        self._log_sum = 0.0
        self.constraint: Constraint | None = None

    def _check(self) -> None:
        """Everything that must be a token is one."""
        p = self.params
        texts = [word for word in p.bad_words if isinstance(word, str)]
        if "dry" in chain(p):
            texts += [word for word in p.dry_sequence_breakers if isinstance(word, str)]
        if texts:
            raise SamplingError(
                f"the sampler takes token ids, not the text {texts[0]!r}: see params.in_tokens"
            )
        named = {
            "stop_token_ids": p.stop_token_ids,
            "allowed_token_ids": p.allowed_token_ids or (),
            "logit_bias": p.logit_bias or (),
            "bad_words": [token for word in p.bad_words for token in word],
            "eog_ids": self._eog,
        }
        for name, ids in named.items():
            if outside := [token for token in ids if not 0 <= int(token) < self.vocab]:
                raise SamplingError(
                    f"{name} holds {outside[0]}: the vocabulary has {self.vocab} tokens"
                )

    @property
    def generated(self) -> list[int]:
        """The accepted tokens that are not the prompt's."""
        return self._memory.generated

    def sample(self, logits: Logits) -> Sampled:
        """Draw the next token from logits float32 [vocab], which stay as they are.

        Raises SamplingError where they are of another size, NaN, infinite, or all -inf, or where
        bans leave no token.
        """
        self._shape(logits)
        token = self._chain.choose()
        self._demand_left(token)
        return self.chosen(token)

    @property
    def takes_argmax(self) -> bool:
        """Whether the next token is the most likely one of logits as they come, and no others are
        asked for: then `argmax` does without them."""
        p = self.params
        banning = p.allowed_token_ids is not None or p.bad_words or p.logits_processors
        if self.constraint:
            return False
        ending = (p.ignore_eos and p.order != "vllm") or len(self.generated) < p.min_tokens
        return chain(p) == ("greedy",) and not (banning or ending or p.logprobs)

    def argmax(self, found: Argmax) -> Sampled:
        """What `sample` would have given."""
        return Sampled(found.token, found.logprob, [])

    def distribution(self, logits: Logits) -> Array:
        """What `sample` would draw from: probabilities float64 [vocab], zero for tokens that are
        banned or cut, one for the only one that is left. `sample`'s errors, and its toss for xtc.
        """
        self._shape(logits)
        if self._chain.greedy:
            p, token = np.zeros(self.vocab), self._chain.choose()
            self._demand_left(token)
            p[token] = 1
            return p
        self._demand_left(int(self._chain.final.argmax()))
        return self._chain.probabilities()

    def draw(self, p: Array) -> int:
        """A token from probabilities float64 [vocab], by this sampler's random numbers."""
        return self._chain.pick(p)

    @property
    def random(self) -> np.random.Generator:
        """The sampler's random numbers, for what else decides about its tokens."""
        return self._memory.random

    def of_another_text(self, seed: int | None, length: int) -> None:
        """What it draws from now on has nothing in common with what it drew for a text of another
        seed, or of another length; of a seed it is always the same."""
        own = self.params.seed or 0
        self._memory.reseed(None if seed is None else (own, seed, length))

    def chosen(self, token: int) -> Sampled:
        """This token of the last `distribution`, as `sample` would have returned it."""
        if self.params.mirostat and not self._chain.greedy:
            self._steer(token)
        log_sum = self._log_sum
        return Sampled(token, float(self._chain.raw[token]) - log_sum, self._top(log_sum))

    def _shape(self, logits: Logits) -> None:
        """Run the chain up to its last op."""
        if logits.shape != (self.vocab,):
            raise SamplingError(f"want logits [{self.vocab}], got {list(logits.shape)}")
        np.copyto(self._chain.raw, logits)
        self._demand_numbers(self._chain.raw)
        self._log_sum = self._chain.normaliser()
        self._edit()
        self._chain.shape()

    def _demand_left(self, token: int) -> None:
        if self._chain.final[token] == -np.inf:
            count = len(self._memory.history)
            raise SamplingError(f"no token is left at token {count}: all are banned")

    def _demand_numbers(self, logits: Array) -> None:
        top, count = logits.max(), len(self._memory.history)
        if top == -np.inf:
            raise SamplingError(f"logits are -inf at token {count}: all {self.vocab} of them")
        if not np.isfinite(top):
            what, bad = ("NaN", np.isnan(logits)) if np.isnan(top) else ("inf", logits == np.inf)
            raise SamplingError(
                f"logits are {what} at token {count}: {bad.sum()} of {self.vocab},"
                f" first that of id {bad.argmax()}"
            )

    def _edit(self) -> None:
        """Bans, then the user's processors."""
        p, logits, generated = self.params, self._chain.edited, self.generated
        if p.allowed_token_ids is None:
            np.copyto(logits, self._chain.raw)
        else:
            logits.fill(-np.inf)
            allowed = list(p.allowed_token_ids)
            logits[allowed] = self._chain.raw[allowed]
        for word in p.bad_words:
            before, last = list(word[:-1]), int(word[-1])
            if not before or generated[-len(before) :] == before:
                logits[last] = -np.inf
        early = len(generated) < p.min_tokens
        if early or (p.ignore_eos and p.order != "vllm"):
            logits[self._eog] = -np.inf
        if early:
            logits[list(p.stop_token_ids)] = -np.inf
        for processor in p.logits_processors:
            edited = np.asarray(processor(list(self._memory.history), logits.copy()))
            if edited.shape != logits.shape or edited.dtype.kind not in "fiu":
                name = getattr(processor, "__qualname__", type(processor).__name__)
                raise SamplingError(
                    f"the logits processor {name} returned {edited.dtype} {list(edited.shape)}:"
                    f" want logits float32 [{self.vocab}]"
                )
            np.copyto(logits, edited, casting="unsafe")
            self._demand_numbers(logits)
        if self.constraint:
            self.constraint.ban(logits)

    def _steer(self, token: int) -> None:
        """Mirostat's feedback: the token's surprise among those that were left, in bits."""
        surprise = self._chain.surprise(token) / math.log(2)
        tau, eta = self.params.mirostat_tau, self.params.mirostat_eta
        self._memory.mu = mirostat_mu(self._memory.mu, surprise, tau, eta)

    def _top(self, total: float) -> list[tuple[int, float]]:
        if not self.params.logprobs:
            return []
        return [(int(i), float(self._chain.raw[i]) - total) for i in self._chain.likeliest()]

    def accept(self, token: int) -> None:
        """The text goes on with this token."""
        self._memory.accept(token)
        if self.constraint:
            self.constraint.accept(token)

    def state(self) -> dict[str, Any]:
        """All that another sampler with the same parameters needs to go on alike; JSON-able."""
        return self._memory.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        self._memory.restore(state)
