"""The sampler chain, as in llama.cpp: certified kernels on buffers.

The chain is fixed when it is made: stages that are off are left out, and each stage's kernel is
bound once to two alternating buffers. Filters come before temperature, as in llama.cpp, or with
order "vllm" after it, min_p first.
"""

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import numpy as np

from engine.sampling.params import GREEDY_BELOW, SamplingError, SamplingParams
from engine.sampling.state import SamplerState
from kernels.call import Run, bind
from kernels.dispatch import KernelSpec
from kernels.table import variants
from reference.op import Arguments, Array

# Binds an op's kernel to (inputs, outputs); `kernels.call.bind` of a chosen kernel is one.
Bind = Callable[[Arguments, Mapping[str, Array]], Run]


def _mirostat_arguments(_: SamplingParams, memory: SamplerState) -> dict[str, Any]:
    return {"mu": lambda: memory.mu}


# An op's arguments besides logits; callables are evaluated for each token.
ARGUMENTS: Mapping[str, Callable[[SamplingParams, SamplerState], dict[str, Any]]] = {
    "logit_bias": lambda p, _: {
        "ids": np.array(list(p.logit_bias or ()), np.int32),
        "biases": np.array(list((p.logit_bias or {}).values()), np.float32),
    },
    "penalties": lambda p, memory: {
        "repeated": memory.repeated,
        "counts": memory.counts,
        "repetition": p.repetition_penalty,
        "frequency": p.frequency_penalty,
        "presence": p.presence_penalty,
    },
    "dry": lambda p, memory: {
        "context": partial(memory.last, p.dry_penalty_last_n),
        "breakers": np.array(p.dry_sequence_breakers, np.int32),
        "multiplier": p.dry_multiplier,
        "base": p.dry_base,
        "allowed": p.dry_allowed_length,
    },
    "top_n_sigma": lambda p, _: {"n": p.top_n_sigma},
    "top_k": lambda p, _: {"k": p.top_k},
    "typical": lambda p, _: {"p": p.typical_p},
    "top_p": lambda p, _: {"p": p.top_p},
    "min_p": lambda p, _: {"p": p.min_p},
    "xtc": lambda p, memory: {
        "probability": p.xtc_probability,
        "threshold": p.xtc_threshold,
        "u": memory.random.random,
    },
    "dynamic_temperature": lambda p, _: {
        "temperature": p.temperature,
        "delta": p.dynatemp_range,
        "exponent": p.dynatemp_exponent,
    },
    "temperature": lambda p, _: {"temperature": p.temperature},
    "mirostat_v1": _mirostat_arguments,
    "mirostat_v2": _mirostat_arguments,
    "draw": lambda _, memory: {"u": memory.random.random},
}


def chain(params: SamplingParams) -> tuple[str, ...]:
    """The ops of the chain, in order.

    Temperatures below 1e-5 are greedy, so filters are left out; mirostat replaces all stages
    between logit_bias and the draw.
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
    elif p.order == "vllm":
        stages = {**edits, **warmth, "min_p": filters.pop("min_p"), **filters, "draw": True}
    else:
        stages = {**edits, **filters, **warmth, "draw": True}
    return tuple(op for op, on in stages.items() if on)


def needed_ops(params: SamplingParams, distributions: bool = False) -> tuple[str, ...]:
    """All ops of a sampler with these parameters; with `distributions` also those of `distribution`
    and `draw`."""
    top = ("top_k",) if params.logprobs else ()
    also = ("softmax", "pick") if distributions else ()
    return tuple(dict.fromkeys((*chain(params), "log_sum_exp", *top, *also)))


def sampling_spec(op: str, vocab: int) -> KernelSpec:
    """The kernel spec of a sampling op, for rows as wide as the vocabulary."""
    return KernelSpec(op, None, (("width" if op == "softmax" else "vocab", vocab),))


def first_variants(params: SamplingParams) -> dict[str, Bind]:
    """The preferred kernel of each op, certified or not, for tests and experiments."""
    return {op: partial(bind, variants(op)[0]) for op in needed_ops(params, distributions=True)}


class Chain:
    """The chain of `params` on buffers float32 [vocab]: `raw` logits, `edited` ones (after bans and
    logits processors; the first op's input) and `final` ones (the last filter's output)."""

    def __init__(
        self, params: SamplingParams, memory: SamplerState, kernels: Mapping[str, Bind]
    ) -> None:
        self._params, self._memory, self._kernels = params, memory, kernels
        for op in needed_ops(params):
            self._kernel(op)
        self.raw = np.empty(memory.vocab, np.float32)
        self.edited, spare = np.empty_like(self.raw), np.empty_like(self.raw)
        self._total, self._token = np.empty(1), np.zeros(1, np.int32)
        self._log_sum_exp = self._stage("log_sum_exp", self.raw, self._total)
        self._stages: list[Callable[[], None]] = []
        source, target = self.edited, spare
        *before, last = chain(params)
        for op in before:
            self._stages.append(self._stage(op, source, target))
            source, target = target, source
        self._select = self._stage(last, source, self._token)
        self.greedy, self.final = last == "greedy", source

    def log_sum_exp(self) -> float:
        """The log-sum-exp of the raw logits."""
        self._log_sum_exp()
        return float(self._total[0])

    def run_filters(self) -> None:
        """Run the chain from `edited` to `final`."""
        for run in self._stages:
            run()

    def select(self) -> int:
        """Select a token with the last op."""
        self._select()
        return int(self._token[0])

    def probabilities(self) -> Array:
        """The softmax of `final`, float64 [vocab]."""
        run, out = self._softmax
        run(1, (0,))
        return np.asarray(out[0] / out.sum(dtype=np.float64), np.float64)

    def pick(self, p: Array) -> int:
        """Sample a token from probabilities float64 [vocab]."""
        run, row, u = self._pick
        row[0], u[0] = p, self._memory.random.random()
        run(1, (0,))
        return int(self._token[0])

    def top_ids(self) -> Array:
        """The ids of the `params.logprobs` largest raw logits, in descending order."""
        run, best = self._top_k
        run()
        ids = np.flatnonzero(np.isfinite(best))
        return np.asarray(ids[np.argsort(-self.raw[ids], kind="stable")])

    def surprise(self, token: int) -> float:
        """A token's surprise (negative log-probability) under `final`, in nats."""
        self._final_log_sum_exp()
        return float(self._total[0]) - float(self.final[token])

    # Kernels that only some samplers need are bound on first use.

    @cached_property
    def _softmax(self) -> tuple[Run, Array]:
        out = np.empty((1, self._memory.vocab), np.float32)
        return self._kernel("softmax")({"x": self.final[np.newaxis]}, {"out": out}), out

    @cached_property
    def _pick(self) -> tuple[Run, Array, Array]:
        row, u = np.empty((1, self._memory.vocab)), np.empty(1)
        return self._kernel("pick")({"p": row, "u": u}, {"tokens": self._token}), row, u

    @cached_property
    def _top_k(self) -> tuple[Callable[[], None], Array]:
        best = np.empty_like(self.raw)
        return self._stage("top_k", self.raw, best, k=self._params.logprobs), best

    @cached_property
    def _final_log_sum_exp(self) -> Callable[[], None]:
        return self._stage("log_sum_exp", self.final, self._total)

    def _kernel(self, op: str) -> Bind:
        if op not in self._kernels:
            raise SamplingError(f"these parameters need a kernel of {op}, none was given")
        return self._kernels[op]

    def _stage(self, op: str, source: Array, target: Array, **given: Any) -> Callable[[], None]:
        """An op from one buffer to another, bound once, or for each token if arguments change."""
        result = {"token" if op in ("greedy", "draw") else "out": target}
        if op in ARGUMENTS and not given:
            given = ARGUMENTS[op](self._params, self._memory)
        arguments = {"logits": source, **given}
        make = self._kernels[op]
        changing = {name: value for name, value in arguments.items() if callable(value)}
        if changing:

            def run() -> None:
                make({**arguments, **{n: v() for n, v in changing.items()}}, result)(1, (0,))

            return run
        return partial(make(arguments, result), 1, (0,))
