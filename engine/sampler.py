"""From logits to a token: llama.cpp's chain of certified kernels, and the state it needs.

Knows neither model nor tokenizer. The chain is fixed when the sampler is made: stages that are off
are left out, and each stage's kernel is bound once to two buffers that take turns. Filters come
before temperature, as in llama.cpp (vLLM divides by the temperature first).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from engine.sampling_params import GREEDY_BELOW, Logits, SamplingError, SamplingParams
from kernels.call import Run, bind
from kernels.table import variants
from reference.op import Arguments
from reference.samplers.mirostat import mirostat_mu

Array = np.ndarray[Any, np.dtype[Any]]
# Binds an op's kernel to (inputs, outputs); `kernels.call.bind` of a chosen kernel is one.
Bind = Callable[[Arguments, Mapping[str, Array]], Run]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token and its natural log-probability; `top` the most likely (token, logprob) pairs.

    Log-probabilities are those of the raw logits, before any ban, penalty, filter or temperature,
    as vLLM gives them by default.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


def chain(params: SamplingParams) -> tuple[str, ...]:
    """The ops that turn logits into a token, in order.

    Temperatures below 1e-5 take the most likely token, so no filter can matter; mirostat replaces
    all between logit_bias and the draw.
    """
    p = params
    wanted = (p.repetition_penalty, p.frequency_penalty, p.presence_penalty) != (1, 0, 0)
    greedy = p.temperature < GREEDY_BELOW
    edits = {
        "logit_bias": bool(p.logit_bias),
        "penalties": wanted and p.penalty_last_n != 0,
        "dry": p.dry_multiplier > 0 and p.dry_penalty_last_n != 0,
    }
    filters = {
        "top_n_sigma": p.top_n_sigma >= 0,
        "top_k": p.top_k > 0,
        "typical": p.typical_p < 1,
        "top_p": p.top_p < 1,
        "min_p": p.min_p > 0,
        "xtc": p.xtc_probability > 0 and p.xtc_threshold <= 0.5,
    }
    warmth = {
        "dynamic_temperature": p.dynatemp_range > 0,
        "temperature": p.dynatemp_range == 0 and p.temperature != 1,
    }
    if greedy:
        stages = {**edits, "greedy": True}
    elif p.mirostat:
        steer = {f"mirostat_v{p.mirostat}": True, "draw": True}
        stages = {"logit_bias": edits["logit_bias"], **warmth, **steer}
    else:
        stages = {**edits, **filters, **warmth, "draw": True}
    return tuple(op for op, on in stages.items() if on)


def needed_ops(params: SamplingParams, distributions: bool = False) -> tuple[str, ...]:
    """All ops of which a sampler with these parameters wants a kernel, also those of `distribution`
    and `draw` if they will be asked for."""
    top = ("top_k",) if params.logprobs else ()
    also = ("softmax", "pick") if distributions else ()
    return tuple(dict.fromkeys((*chain(params), "log_sum_exp", *top, *also)))


def first_variants(params: SamplingParams) -> dict[str, Bind]:
    """The preferred kernel of each op, whether certified or not: for tests and experiments."""
    return {op: partial(bind, variants(op)[0]) for op in needed_ops(params, distributions=True)}


class Sampler:
    """Samples one sequence. The same seed, tokens and logits give the same tokens.

    `sample` draws; `accept` tells what token the text went on with, drawn or not. `prompt` is what
    stood before: penalties look at it, `min_tokens` and `bad_words` do not. `kernels` binds the ops
    of `needed_ops(params)`. Samplers of different `stream` have independent random numbers, even of
    one seed.

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
        self._kernels = first_variants(params) if kernels is None else kernels
        self._check()
        seeds = np.random.SeedSequence(params.seed, spawn_key=stream)
        self._random = np.random.Generator(np.random.PCG64(seeds))
        self._mu = 2 * params.mirostat_tau
        self._repeated = np.zeros(vocab, np.int32)
        self._counts = self._repeated.copy() if params.penalty_last_n is None else self._repeated
        self._history: list[int] = []
        self._prompt = 0
        self._bind()
        for token in prompt:
            self.accept(token)
        self._prompt = len(prompt)
        if params.penalty_last_n is None:
            self._counts[:] = 0

    def _check(self) -> None:
        """Every op has a kernel, and everything that must be a token is one."""
        p = self.params
        for op in needed_ops(p):
            self._kernel(op)
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

    def _kernel(self, op: str) -> Bind:
        if op not in self._kernels:
            raise SamplingError(f"these parameters need a kernel of {op}, none was given")
        return self._kernels[op]

    def _bind(self) -> None:
        """Lay the chain over its buffers."""
        self._raw, self._total = np.empty(self.vocab, np.float32), np.empty(1)
        self._edited, spare = np.empty_like(self._raw), np.empty_like(self._raw)
        self._token = np.zeros(1, np.int32)
        self._normalise = self._stage("log_sum_exp", self._raw, self._total)
        self._stages: list[Callable[[], None]] = []
        source, target = self._edited, spare
        *before, last = chain(self.params)
        for op in before:
            self._stages.append(self._stage(op, source, target))
            source, target = target, source
        self._choose = self._stage(last, source, self._token)
        self._greedy = last == "greedy"
        self._final, self._log_sum = source, 0.0
        if self.params.logprobs:
            self._best = np.empty_like(self._raw)
            self._rank = self._stage("top_k", self._raw, self._best, k=self.params.logprobs)
        if self.params.mirostat:
            self._measure = self._stage("log_sum_exp", self._final, self._total)

    def _stage(self, op: str, source: Array, target: Array, **given: Any) -> Callable[[], None]:
        """One op from buffer to buffer: bound once, or for each token where arguments change."""
        result = {"token" if op in ("greedy", "draw") else "out": target}
        arguments = {"logits": source, **(given or self._arguments(op))}
        make = self._kernels[op]
        changing = {name: value for name, value in arguments.items() if callable(value)}
        if changing:

            def run() -> None:
                make({**arguments, **{n: v() for n, v in changing.items()}}, result)(1, (0,))

            return run
        return partial(make(arguments, result), 1, (0,))

    def _arguments(self, op: str) -> dict[str, Any]:
        """An op's arguments beside logits; a callable is asked anew for each token."""
        p = self.params
        match op:
            case "logit_bias":
                biases = p.logit_bias or {}
                return {
                    "ids": np.array(list(biases), np.int32),
                    "biases": np.array(list(biases.values()), np.float32),
                }
            case "penalties":
                return {
                    "repeated": self._repeated,
                    "counts": self._counts,
                    "repetition": p.repetition_penalty,
                    "frequency": p.frequency_penalty,
                    "presence": p.presence_penalty,
                }
            case "dry":
                return {
                    "context": self._dry_context,
                    "breakers": np.array(p.dry_sequence_breakers, np.int32),
                    "multiplier": p.dry_multiplier,
                    "base": p.dry_base,
                    "allowed": p.dry_allowed_length,
                }
            case "xtc":
                coin = self._random.random
                return {"probability": p.xtc_probability, "threshold": p.xtc_threshold, "u": coin}
            case "dynamic_temperature":
                return {
                    "temperature": p.temperature,
                    "delta": p.dynatemp_range,
                    "exponent": p.dynatemp_exponent,
                }
        plain: dict[str, dict[str, Any]] = {
            "top_n_sigma": {"n": p.top_n_sigma},
            "top_k": {"k": p.top_k},
            "typical": {"p": p.typical_p},
            "top_p": {"p": p.top_p},
            "min_p": {"p": p.min_p},
            "temperature": {"temperature": p.temperature},
            "mirostat_v1": {"mu": lambda: self._mu},
            "mirostat_v2": {"mu": lambda: self._mu},
            "draw": {"u": self._random.random},
        }
        return plain.get(op, {})

    def _dry_context(self) -> Array:
        last = self.params.dry_penalty_last_n
        return np.array(self._history if last < 0 else self._history[-last:], np.int32)

    @property
    def generated(self) -> list[int]:
        """The accepted tokens that are not the prompt's."""
        return self._history[self._prompt :]

    def sample(self, logits: Logits) -> Sampled:
        """Draw the next token from logits float32 [vocab], which stay as they are.

        Raises SamplingError where they are of another size, NaN, infinite, or all -inf, or where
        bans leave no token.
        """
        self._shape(logits)
        self._choose()
        token = int(self._token[0])
        self._demand_left(token)
        return self.chosen(token)

    def distribution(self, logits: Logits) -> Array:
        """What `sample` would draw from: probabilities float64 [vocab], zero for tokens that are
        banned or cut, one for the only one that is left. `sample`'s errors, and its toss for xtc.
        """
        self._shape(logits)
        p = np.zeros(self.vocab)
        if self._greedy:
            self._choose()
            token = int(self._token[0])
            self._demand_left(token)
            p[token] = 1
            return p
        self._demand_left(int(self._final.argmax()))
        out = np.empty((1, self.vocab), np.float32)
        self._kernel("softmax")({"x": self._final[np.newaxis]}, {"out": out})(1, (0,))
        np.divide(out[0], out.sum(dtype=np.float64), out=p)
        return p

    def draw(self, p: Array) -> int:
        """A token from probabilities float64 [vocab], by this sampler's random numbers."""
        u = np.array([self._random.random()])
        self._kernel("pick")({"p": p[np.newaxis], "u": u}, {"tokens": self._token})(1, (0,))
        return int(self._token[0])

    @property
    def random(self) -> np.random.Generator:
        """The sampler's random numbers, for what else decides about its tokens."""
        return self._random

    def chosen(self, token: int) -> Sampled:
        """This token of the last `distribution`, as `sample` would have returned it."""
        if self.params.mirostat and not self._greedy:
            self._steer(token)
        log_sum = self._log_sum
        return Sampled(token, float(self._raw[token]) - log_sum, self._top(log_sum))

    def _shape(self, logits: Logits) -> None:
        """Run the chain up to its last op."""
        if logits.shape != (self.vocab,):
            raise SamplingError(f"want logits [{self.vocab}], got {list(logits.shape)}")
        np.copyto(self._raw, logits)
        self._demand_numbers(self._raw)
        self._normalise()
        self._log_sum = float(self._total[0])
        self._edit()
        for run in self._stages:
            run()

    def _demand_left(self, token: int) -> None:
        if self._final[token] == -np.inf:
            raise SamplingError(f"no token is left at token {len(self._history)}: all are banned")

    def _demand_numbers(self, logits: Array) -> None:
        top, count = logits.max(), len(self._history)
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
        p, logits, generated = self.params, self._edited, self.generated
        if p.allowed_token_ids is None:
            np.copyto(logits, self._raw)
        else:
            logits.fill(-np.inf)
            allowed = list(p.allowed_token_ids)
            logits[allowed] = self._raw[allowed]
        for word in p.bad_words:
            before, last = list(word[:-1]), int(word[-1])
            if not before or generated[-len(before) :] == before:
                logits[last] = -np.inf
        early = len(generated) < p.min_tokens
        if p.ignore_eos or early:
            logits[self._eog] = -np.inf
        if early:
            logits[list(p.stop_token_ids)] = -np.inf
        for processor in p.logits_processors:
            np.copyto(logits, processor(list(self._history), logits.copy()))
            self._demand_numbers(logits)

    def _steer(self, token: int) -> None:
        """Mirostat's feedback: the token's surprise among those that were left."""
        self._measure()
        surprise = (float(self._total[0]) - float(self._final[token])) / math.log(2)
        tau, eta = self.params.mirostat_tau, self.params.mirostat_eta
        self._mu = mirostat_mu(self._mu, surprise, tau, eta)

    def _top(self, total: float) -> list[tuple[int, float]]:
        if not self.params.logprobs:
            return []
        self._rank()
        ids = np.flatnonzero(np.isfinite(self._best))
        ids = ids[np.argsort(-self._raw[ids], kind="stable")]
        return [(int(i), float(self._raw[i]) - total) for i in ids]

    def accept(self, token: int) -> None:
        """The text goes on with this token."""
        if not 0 <= token < self.vocab:
            raise SamplingError(f"token {token} is outside the vocabulary of {self.vocab}")
        self._history.append(int(token))
        self._repeated[token] += 1
        last = self.params.penalty_last_n
        if last is None:
            self._counts[token] += 1
        elif 0 <= last < len(self._history):
            self._repeated[self._history[-last - 1]] -= 1

    def state(self) -> dict[str, Any]:
        """All that another sampler with the same parameters needs to go on alike; JSON-able."""
        return {
            "history": list(self._history),
            "prompt": self._prompt,
            "mu": self._mu,
            "random": self._random.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken."""
        try:
            history, prompt = list(state["history"]), int(state["prompt"])
            mu, random = float(state["mu"]), state["random"]
            self._random.bit_generator.state = random
        except (KeyError, TypeError, ValueError) as error:
            raise SamplingError(f"this is no sampler's state: {error}") from error
        self._history, self._prompt, self._mu = [], 0, mu
        self._repeated[:] = 0
        self._counts[:] = 0
        for position, token in enumerate(history):
            if position == prompt and self.params.penalty_last_n is None:
                self._counts[:] = 0
            self.accept(token)
        self._prompt = prompt
