"""Sampling parameters: vLLM's names and defaults, and llama.cpp's additional samplers.

vLLM's `best_of` and `guided_decoding` are not supported: they raise a TypeError.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from engine.errors import SamplingError as SamplingError
from engine.sampling.structured_params import StructuredOutputsParams

Logits = np.ndarray[Any, np.dtype[np.float32]]
Processor = Callable[[list[int], Logits], Logits]
GREEDY_BELOW = 1e-5  # temperatures below this are greedy, as in vLLM


# Inclusive ranges. None is allowed if it is the default; fractions if the default is a float.
MOST = 2**31 - 1
RANGES: dict[str, tuple[float, float]] = {
    "n": (1, MOST),
    "top_k": (-1, MOST),
    "seed": (0, 2**64 - 1),
    "max_tokens": (1, MOST),
    "min_tokens": (0, MOST),
    "logprobs": (0, MOST),
    "prompt_logprobs": (0, MOST),
    "truncate_prompt_tokens": (1, MOST),
    "dry_allowed_length": (0, MOST),
    "dry_penalty_last_n": (-1, MOST),
    "mirostat": (0, 2),
    "penalty_last_n": (-1, MOST),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "temperature": (0, 1e6),
    "repetition_penalty": (1e-6, 1e6),
    "top_p": (0, 1),
    "typical_p": (0, 1),
    "min_p": (0, 1),
    "top_n_sigma": (-1, math.inf),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "dry_multiplier": (0, math.inf),
    "dry_base": (1, math.inf),
    "dynatemp_range": (0, 1e6),
    "dynatemp_exponent": (0, math.inf),
    "mirostat_tau": (0, math.inf),
    "mirostat_eta": (0, math.inf),
}
NOT_ZERO = ("top_p", "typical_p")
ORDERS = ("llama.cpp", "vllm")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are sampled and when a completion ends; bad values raise SamplingError.

    - Off are: `top_k` 0 or -1, `top_p` 1, `min_p` 0, `typical_p` 1, `top_n_sigma` below 0,
      `xtc_probability` 0, `dry_multiplier` 0, `dynatemp_range` 0 and `mirostat` 0.
    - `penalty_last_n`: None is vLLM's rule: repetition penalty counts prompt and output, frequency
      and presence penalties the output only. A number is llama.cpp's: all three count that many
      last tokens (-1: all).
    - `bad_words` and `dry_sequence_breakers` are texts, as in vLLM and llama.cpp, or token ids (a
      list of them for a bad word, one for a breaker); `in_tokens` converts texts to ids.
    - `logits_processors` are called with (history, logits float32 [vocab]) and return logits.
    - `structured_outputs`: constrain the answer's format (StructuredOutputsParams).
    - `order`: "llama.cpp" filters before temperature, and `ignore_eos` bans EOS; "vllm" applies
      temperature first, and `ignore_eos` continues after a sampled EOS.
    - `max_tokens` None: limited by the context only. `seed` None: not reproducible.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    bad_words: Sequence[str | Sequence[int]] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    logits_processors: Sequence[Processor] = ()
    truncate_prompt_tokens: int | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None

    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: Sequence[str | int] = ("\n", ":", '"', "*")
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    penalty_last_n: int | None = None
    order: str = "llama.cpp"

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_sequences()
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise SamplingError(
                f"min_tokens is {self.min_tokens}: it may not exceed max_tokens, {self.max_tokens}"
            )
        if self.order not in ORDERS:
            raise SamplingError(f"order is {self.order!r}: want {' or '.join(ORDERS)}")
        if self.stop and not self.detokenize:
            raise SamplingError("stop is set: it needs detokenize, which is off")
        if self.structured_outputs is not None:
            if not isinstance(self.structured_outputs, StructuredOutputsParams):
                raise SamplingError(
                    f"structured_outputs is {self.structured_outputs!r}: want a"
                    " StructuredOutputsParams"
                )
            if self.ignore_eos:
                raise SamplingError("ignore_eos and structured_outputs exclude each other")

    def _check_numbers(self) -> None:
        for field in fields(self):
            name, value = field.name, getattr(self, field.name)
            if value is None and (field.default is None or name == "max_tokens"):
                continue
            flag = isinstance(value, bool)
            if isinstance(field.default, bool):
                good, want = flag, "True or False"
            elif name in RANGES:
                fraction, limits = isinstance(field.default, float), RANGES[name]
                good = isinstance(value, Real if fraction else Integral) and not flag
                good = good and _within(value, limits)
                want = f"a {'' if fraction else 'whole '}number {_words(limits)}"
                if name in NOT_ZERO:
                    good, want = good and value != 0, f"{want}, but not 0"
            else:
                continue
            if not good:
                raise SamplingError(f"{name} is {value!r}: want {want}")

    def _check_sequences(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if bad := [s for s in stop if not isinstance(s, str) or not s]:
            raise SamplingError(f"stop holds {bad[0]!r}: want texts that are not empty")
        words = tuple(
            word if isinstance(word, str) else _ids("bad_words", word)
            for word in self.bad_words or ()
        )
        if any(not word for word in words):
            raise SamplingError("bad_words holds an empty word: want texts or lists of token ids")
        breakers = tuple(self.dry_sequence_breakers or ())
        _ids("dry_sequence_breakers", [b for b in breakers if not isinstance(b, str)])
        if callable(self.logits_processors):
            raise SamplingError(
                f"logits_processors is {self.logits_processors!r}: want a list of callables"
            )
        processors = tuple(self.logits_processors or ())
        if not_callable := [p for p in processors if not callable(p)]:
            raise SamplingError(f"logits_processors holds {not_callable[0]!r}: want callables")
        allowed = self.allowed_token_ids
        if allowed is not None:
            allowed = _ids("allowed_token_ids", allowed)
            if not allowed:
                raise SamplingError("allowed_token_ids is empty: want token ids, or None")
        put = object.__setattr__
        put(self, "stop", stop)
        put(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids or ()))
        put(self, "bad_words", words)
        put(self, "dry_sequence_breakers", breakers)
        put(self, "logits_processors", processors)
        put(self, "logit_bias", _biases(self.logit_bias or {}))
        put(self, "allowed_token_ids", allowed)

    def in_tokens(self, encode: Callable[[str], Sequence[int]]) -> "SamplingParams":
        """Returns parameters with token ids for texts; `encode` adds no special tokens.

        A bad word is banned with and without a leading space, as in vLLM; a breaker is the last
        token of its text.
        """
        words: dict[tuple[int, ...], None] = {}
        for word in self.bad_words:
            spellings = [encode(word), encode(" " + word)] if isinstance(word, str) else [word]
            words |= dict.fromkeys(tuple(ids) for ids in spellings if ids)
        breakers: dict[int, None] = {}
        for breaker in self.dry_sequence_breakers:
            ids = encode(breaker) if isinstance(breaker, str) else [breaker]
            breakers |= dict.fromkeys(ids[-1:])
        return replace(self, bad_words=tuple(words), dry_sequence_breakers=tuple(breakers))


def _within(value: Any, limits: tuple[float, float]) -> bool:
    """Whether a finite value is within the limits."""
    return math.isfinite(value) and limits[0] <= value <= limits[1]


def _words(limits: tuple[float, float]) -> str:
    low, high = limits
    return f"from {low:g} up" if high >= MOST else f"from {low:g} to {high:g}"


def _ids(name: str, ids: Iterable[Any]) -> tuple[int, ...]:
    for token in (ids := tuple(ids)):
        if not isinstance(token, Integral) or isinstance(token, bool) or token < 0:
            raise SamplingError(f"{name} holds {token!r}: want token ids, from 0 up")
    return tuple(int(token) for token in ids)


def _biases(biases: Mapping[int, float]) -> dict[int, float]:
    ids = _ids("logit_bias", biases)
    for token, bias in biases.items():
        if not isinstance(bias, Real) or not float(bias) < math.inf:
            raise SamplingError(
                f"logit_bias of token {token} is {bias!r}: want a number (-inf forbids a token)"
            )
    return dict(zip(ids, map(float, biases.values()), strict=True))
