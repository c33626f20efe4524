"""What may be asked for: a prompt, or many with parameters for all or each its own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count, repeat
from numbers import Integral
from typing import TypeGuard

from engine.checks import PromptError
from engine.sampling.params import SamplingParams
from engine.schedule.request import Request

Prompt = str | Sequence[int]
AHEAD = 4  # prompts that wait for each sequence; further ones are not even asked for


def is_one(prompts: Prompt | Iterable[Prompt]) -> TypeGuard[Prompt]:
    """Whether this is a prompt, a text or token ids, and not several. What cannot be several is
    taken for one, which is refused when it is read."""
    if isinstance(prompts, str | bytes) or not isinstance(prompts, Iterable):
        return True
    return isinstance(prompts, Sequence) and bool(prompts) and isinstance(prompts[0], Integral)


def requests_of(
    prompts: Iterable[Prompt],
    params: SamplingParams | Sequence[SamplingParams] | None,
    priorities: Sequence[int] | None,
) -> Iterator[Request]:
    """A request for each prompt, numbered from 0: with the same parameters, or each its own."""
    if isinstance(prompts, Sequence):
        for name, given in (("params", params), ("priorities", priorities)):
            if isinstance(given, Sequence) and len(given) != len(prompts):
                raise PromptError(f"there are {len(prompts)} prompts, but {len(given)} {name}")
    same = params or SamplingParams()
    own = repeat(same) if isinstance(same, SamplingParams) else same
    if not isinstance(own, Iterable) or isinstance(own, Mapping | str):
        raise PromptError(f"params are {own!r:.60}: want a SamplingParams, or one for each prompt")
    order = priorities or repeat(0)
    return (
        Request(str(number), prompt, _params(asked, number), priority)
        for number, prompt, asked, priority in zip(count(), prompts, own, order)
    )


def _params(asked: SamplingParams, number: int) -> SamplingParams:
    if not isinstance(asked, SamplingParams):
        raise PromptError(f"params of prompt {number} are {asked!r:.60}: want a SamplingParams")
    return asked
