"""Settings of speculative decoding: the kind of drafter and its parameters, under llama.cpp's and
vLLM's names where they exist.

`draft_max`: most tokens of a draft. `adaptive`: draft fewer tokens, or none, when measured
acceptance and costs show that it is faster.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

from engine.config import ModelError
from engine.sampling.params import SamplingParams


def _check_least(**least: tuple[int, int]) -> None:
    for name, (value, bound) in least.items():
        if value < bound:
            raise ModelError(f"{name} must be at least {bound}, got {value}")


def _check_fractions(**shares: float) -> None:
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise ModelError(f"{name} must be 0 to 1, got {value}")


def _check_number(threshold: float | None) -> None:
    if threshold is not None and math.isnan(threshold):
        raise ModelError(f"threshold is {threshold}, not a number")


@dataclass(frozen=True, slots=True)
class Linear:
    """A chain by a draft model: its likeliest tokens, or sampled with `sampling` (whose penalties
    have no text to count).

    Drafting ends before a token with less than `draft_p_min` of the probability of the ten
    likeliest; drafts shorter than `draft_min` are discarded. Sampled drafts must not depend on the
    tokens in this: they end where no token has `draft_p_min`, and are used at any length. With
    `threshold` and no draft model, the target drafts for itself with only those neurons whose
    logits reach this stricter threshold. `translate`: the draft model has another vocabulary.
    """

    draft_max: int = 16
    draft_min: int = 0
    draft_p_min: float = 0.75
    sampling: SamplingParams | None = None
    threshold: float | None = None
    translate: bool = False
    adaptive: bool = True

    def __post_init__(self) -> None:
        _check_least(draft_max=(self.draft_max, 1), draft_min=(self.draft_min, 0))
        _check_fractions(draft_p_min=self.draft_p_min)
        _check_number(self.threshold)
        if self.sampling and self.translate:
            raise ModelError("translated drafts have no probabilities: leave out sampling")
        if self.sampling and self.draft_min:
            raise ModelError("sampled drafts are used at any length: draft_min must be 0")


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree by a draft model: branches fork at tokens with more than `p_split` of the probability
    of the ten likeliest, up to `n_parallel` of them; otherwise as Linear."""

    draft_max: int = 16
    draft_min: int = 0
    draft_p_min: float = 0.75
    p_split: float = 0.1
    n_parallel: int = 4
    threshold: float | None = None
    translate: bool = False
    adaptive: bool = True

    def __post_init__(self) -> None:
        _check_least(
            draft_max=(self.draft_max, 1),
            draft_min=(self.draft_min, 0),
            n_parallel=(self.n_parallel, 1),
        )
        _check_fractions(draft_p_min=self.draft_p_min, p_split=self.p_split)
        _check_number(self.threshold)


@dataclass(frozen=True, slots=True)
class PromptLookup:
    """The continuation of the longest suffix of the text, of `prompt_lookup_min` to
    `prompt_lookup_max` tokens, that occurred before."""

    draft_max: int = 10
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    adaptive: bool = True

    def __post_init__(self) -> None:
        _check_least(
            draft_max=(self.draft_max, 1),
            prompt_lookup_min=(self.prompt_lookup_min, 1),
            prompt_lookup_max=(self.prompt_lookup_max, self.prompt_lookup_min),
        )


@dataclass(frozen=True, slots=True)
class LookaheadTrie:
    """The most frequent continuations in prompts and outputs so far (arXiv 2312.12728)."""

    draft_max: int = 64
    branch_length: int = 12
    adaptive: bool = True

    def __post_init__(self) -> None:
        _check_least(draft_max=(self.draft_max, 1), branch_length=(self.branch_length, 1))


@dataclass(frozen=True, slots=True)
class Lookahead:
    """Jacobi iteration alongside the text, and the n-grams it finds (arXiv 2402.02057)."""

    W: int = 15
    N: int = 5
    G: int = 15
    seed: int = 0

    def __post_init__(self) -> None:
        _check_least(W=(self.W, 1), N=(self.N, 2), G=(self.G, 0))

    @property
    def draft_max(self) -> int:
        return (self.W + self.G) * (self.N - 1)

    @property
    def adaptive(self) -> bool:
        return False  # its window has a fixed size


@dataclass(frozen=True, slots=True)
class MTP:
    """A chain by the model's own multi-token-prediction blocks (DeepSeek-V3, arXiv 2412.19437),
    each after the likeliest token of the one before, then the last after its own; it ends as in
    Linear."""

    draft_max: int = 3
    draft_p_min: float = 0.75
    adaptive: bool = True

    def __post_init__(self) -> None:
        _check_least(draft_max=(self.draft_max, 1))
        _check_fractions(draft_p_min=self.draft_p_min)


Settings = Linear | Tree | PromptLookup | LookaheadTrie | Lookahead | MTP


KINDS: dict[str, type[Settings]] = {
    "linear": Linear,
    "tree": Tree,
    "lookup": PromptLookup,
    "trie": LookaheadTrie,
    "lookahead": Lookahead,
    "mtp": MTP,
}


def settings(kind: str, **given: Any) -> Settings | None:
    """Settings by kind ("": None), from those `given` values that it has and that are not None."""
    if not kind:
        return None
    if kind not in KINDS:
        raise ModelError(f"unknown speculation {kind!r}: want {', '.join(KINDS)}")
    known = {field.name for field in fields(KINDS[kind])}
    return KINDS[kind](**{n: v for n, v in given.items() if n in known and v is not None})


def branches(settings: Settings) -> int:
    """Most branches of a draft; each needs a sequence in the cache."""
    match settings:
        case Tree():
            return settings.n_parallel
        case LookaheadTrie():
            return settings.draft_max
        case Lookahead():
            return settings.W + settings.G
        case _:
            return 1
