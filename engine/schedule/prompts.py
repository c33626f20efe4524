"""Build requests from the arguments of `generate`: one prompt, or many."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from numbers import Integral
from typing import TypeGuard

from engine.checks import PromptError
from engine.sampling.params import SamplingParams
from engine.schedule.request import Request

Prompt = str | Sequence[int]
QUEUED_PER_SEQUENCE = 4  # prompts queued per sequence; further ones are not consumed


def is_single(prompts: Prompt | Iterable[Prompt]) -> TypeGuard[Prompt]:
    """Whether this is a single prompt (a text or token ids). Values of other types count as one,
    and are rejected when they are encoded."""
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        return True
    return isinstance(prompts, Sequence) and bool(prompts) and isinstance(prompts[0], Integral)


def make_requests(
    prompts: Iterable[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None,
    priorities: Sequence[int] | None,
) -> Iterator[Request]:
    """A request for each prompt, with ids from "0", with shared or individual parameters."""
    if isinstance(prompts, Sequence):
        for name, given in (("params", params), ("priorities", priorities)):
            if isinstance(given, Sequence) and len(given) != len(prompts):
                raise PromptError(f"there are {len(prompts)} prompts, but {len(given)} {name}")
    same = params or SamplingParams()
    own = repeat(same) if isinstance(same, SamplingParams) else same
    if not isinstance(own, Iterable) or isinstance(own, Mapping | str):
        raise PromptError(f"params must be a SamplingParams or one per prompt, got {own!r:.60}")
    order = priorities or repeat(0)
    return (
        Request(str(number), prompt, _params(asked, number), priority)
        for number, prompt, asked, priority in zip(count(), prompts, own, order)
    )


def _params(asked: SamplingParams, number: int) -> SamplingParams:
    if not isinstance(asked, SamplingParams):
        raise PromptError(f"params of prompt {number} must be a SamplingParams, got {asked!r:.60}")
    return asked
