"""Sample a token from logits: bans, the sampler chain, and state between tokens.

Independent of model and tokenizer.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from engine.sampling.chain import Bind, Chain, chain, first_variants
from engine.sampling.params import Logits, SamplingError, SamplingParams
from engine.sampling.state import SamplerState
from reference.op import Array
from reference.samplers.mirostat import mirostat_mu


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token and its natural log-probability; `top` are the most likely (token, logprob) pairs.

    Log-probabilities are those of the raw logits, before bans, penalties, filters and temperature,
    as in vLLM by default.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Argmax:
    """The argmax of logits that stay on a GPU: the token and its log-probability."""

    token: int
    logprob: float


Row = np.ndarray[Any, np.dtype[np.float32]] | Argmax  # a step's result for the next token


class Constraint(Protocol):
    """Restricts the next token."""

    def ban(self, logits: Logits) -> None:
        """Ban disallowed tokens, in logits [vocab]."""

    def accept(self, token: int) -> None:
        """Append a token to the text."""


class Sampler:
    """Samples one sequence. The same seed, tokens and logits give the same tokens.

    `sample` samples; `accept` appends a token to the text, sampled or not. `prompt` is the text
    before: penalties count it, `min_tokens` and `bad_words` do not. `kernels` binds the ops of
    `needed_ops(params)`. Different `stream`s have independent random numbers, even with the same
    seed.

    A `constraint`, if set, is applied after all other bans.

    For speculative decoding: `distribution`, `result`, then `accept`.
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
        self._memory = SamplerState(params, vocab, prompt, stream)
        kernels = first_variants(params) if kernels is None else kernels
        self._chain = Chain(params, self._memory, kernels)
        self._log_sum = 0.0
        self.constraint: Constraint | None = None

    def _check(self) -> None:
        """Check that all token ids are within the vocabulary."""
        p = self.params
        texts = [word for word in p.bad_words if isinstance(word, str)]
        if "dry" in chain(p):
            texts += [word for word in p.dry_sequence_breakers if isinstance(word, str)]
        if texts:
            raise SamplingError(
                f"the sampler takes token ids, not the text {texts[0]!r}: use params.in_tokens"
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
        """The accepted tokens after the prompt."""
        return self._memory.generated

    def sample(self, logits: Logits) -> Sampled:
        """Sample the next token from logits float32 [vocab], which are not modified.

        Raises `SamplingError` if the logits have another shape, are NaN, infinite or all -inf, or
        if all tokens are banned.
        """
        self._run_chain(logits)
        token = self._chain.select()
        self._check_any_left(token)
        return self.result(token)

    @property
    def argmax_bans(self) -> frozenset[int] | None:
        """The banned tokens, where sampling is a plain argmax of the raw logits unless that is one
        of them: then `argmax` can replace `sample`. None where sampling is more."""
        p = self.params
        banning = p.allowed_token_ids is not None or p.bad_words or p.logits_processors
        if self.constraint or chain(p) != ("greedy",) or banning or p.logprobs:
            return None
        return frozenset(self._banned_ends)

    @property
    def _banned_ends(self) -> list[int]:
        """The tokens that would end the text, where it must not end."""
        p = self.params
        if len(self.generated) < p.min_tokens:
            return [*self._eog, *p.stop_token_ids]
        return self._eog if p.ignore_eos and p.order != "vllm" else []

    def argmax(self, found: Argmax) -> Sampled:
        """Like `sample`, from an argmax that is not banned."""
        return Sampled(found.token, found.logprob, [])

    def distribution(self, logits: Logits) -> Array:
        """The distribution that `sample` draws from: probabilities float64 [vocab], zero for banned
        and filtered tokens. Raises as `sample` does; draws a random number for xtc."""
        self._run_chain(logits)
        if self._chain.greedy:
            p, token = np.zeros(self.vocab), self._chain.select()
            self._check_any_left(token)
            p[token] = 1
            return p
        self._check_any_left(int(self._chain.final.argmax()))
        return self._chain.probabilities()

    def draw(self, p: Array) -> int:
        """Sample a token from probabilities float64 [vocab], with this sampler's random numbers."""
        return self._chain.pick(p)

    @property
    def random(self) -> np.random.Generator:
        """The sampler's random number generator, for use in verification."""
        return self._memory.random

    def reseed(self, seed: int | None, length: int) -> None:
        """Reseed for a text of this seed and length: independent of other texts, and reproducible
        for the same seed."""
        own = self.params.seed or 0
        self._memory.reseed(None if seed is None else (own, seed, length))

    def result(self, token: int) -> Sampled:
        """The result for this token of the last `distribution`, as `sample` would return it."""
        if self.params.mirostat and not self._chain.greedy:
            self._update_mu(token)
        log_sum = self._log_sum
        return Sampled(token, float(self._chain.raw[token]) - log_sum, self._top(log_sum))

    def _run_chain(self, logits: Logits) -> None:
        """Run the chain up to its last op."""
        if logits.shape != (self.vocab,):
            raise SamplingError(f"want logits [{self.vocab}], got {list(logits.shape)}")
        np.copyto(self._chain.raw, logits)
        self._check_finite(self._chain.raw)
        self._log_sum = self._chain.log_sum_exp()
        self._apply_bans()
        self._chain.run_filters()

    def _check_any_left(self, token: int) -> None:
        if self._chain.final[token] == -np.inf:
            count = len(self._memory.history)
            raise SamplingError(f"no token is left at token {count}: all are banned")

    def _check_finite(self, logits: Array) -> None:
        top, count = logits.max(), len(self._memory.history)
        if top == -np.inf:
            raise SamplingError(f"logits are -inf at token {count}: all {self.vocab} of them")
        if not np.isfinite(top):
            what, bad = ("NaN", np.isnan(logits)) if np.isnan(top) else ("inf", logits == np.inf)
            raise SamplingError(
                f"logits are {what} at token {count}: {bad.sum()} of {self.vocab},"
                f" first that of id {bad.argmax()}"
            )

    def _apply_bans(self) -> None:
        """Apply bans, then the user's logits processors, then the constraint."""
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
        if ends := self._banned_ends:
            logits[ends] = -np.inf
        for processor in p.logits_processors:
            edited = np.asarray(processor(list(self._memory.history), logits.copy()))
            if edited.shape != logits.shape or edited.dtype.kind not in "fiu":
                name = getattr(processor, "__qualname__", type(processor).__name__)
                raise SamplingError(
                    f"the logits processor {name} returned {edited.dtype} {list(edited.shape)}:"
                    f" want logits float32 [{self.vocab}]"
                )
            np.copyto(logits, edited, casting="unsafe")
            self._check_finite(logits)
        if self.constraint:
            self.constraint.ban(logits)

    def _update_mu(self, token: int) -> None:
        """Mirostat's feedback, from the token's surprise among the remaining ones, in bits."""
        surprise = self._chain.surprise(token) / math.log(2)
        tau, eta = self.params.mirostat_tau, self.params.mirostat_eta
        self._memory.mu = mirostat_mu(self._memory.mu, surprise, tau, eta)

    def _top(self, total: float) -> list[tuple[int, float]]:
        if not self.params.logprobs:
            return []
        return [(int(i), float(self._chain.raw[i]) - total) for i in self._chain.top_ids()]

    def accept(self, token: int) -> None:
        """Append a token to the text."""
        self._memory.accept(token)
        if self.constraint:
            self.constraint.accept(token)

    def state(self) -> dict[str, Any]:
        """The state, JSON-serializable; with the same parameters, `restore` continues from it."""
        return self._memory.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved `state`."""
        self._memory.restore(state)
