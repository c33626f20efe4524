"""Many prompts of one engine: they come one by one, results go as they are whole."""

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count, repeat
from numbers import Integral
from typing import TYPE_CHECKING, TypeGuard

from engine.checks import PromptError
from engine.errors import BusyError, EngineError
from engine.generation.completion import Piece
from engine.sampling.params import SamplingParams
from engine.schedule.request import Request
from engine.schedule.scheduler import Said, Scheduler

if TYPE_CHECKING:
    from engine.engine import Engine

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


def as_completed(engine: "Engine", requests: Iterator[Request]) -> Iterator[Request]:
    """Requests as they are finished, whatever became of them; few are taken ahead of their turn."""
    return (request for request, piece in _said(engine, requests) if request.ends_with(piece))


def pieces(engine: "Engine", request: Request) -> Generator[Piece, None, None]:
    """The pieces of all completions of one request, as they come. Raises what it fails of."""
    for _, piece in _said(engine, iter([request])):
        if piece:
            yield piece
    if request.error:
        raise request.error


def _said(engine: "Engine", requests: Iterator[Request]) -> Iterator[Said]:
    """What comes of requests, step by step.

    Raises BusyError where another generation has begun on the engine meanwhile.
    """
    generation = engine.begin()
    scheduler = Scheduler(engine.serving(), engine.text.held)
    engine.text.hold([])  # the scheduler has it
    engine.sampler_state = None  # of several texts none is the one that may be gone on with
    ahead = AHEAD * engine.model.options.sequences
    live: dict[str, Request] = {}
    try:
        while True:
            while scheduler.waiting < ahead and (request := next(requests, None)):
                live[request.id] = request
                scheduler.add(request)
            if not scheduler.work:
                return
            for request, piece in scheduler.step():
                if request.error and not isinstance(request.error, EngineError):
                    raise request.error  # of a processor, which is the caller's
                if request.finished:
                    live.pop(request.id, None)
                yield request, piece
                if not engine.is_at(generation):
                    raise BusyError(
                        "this generation cannot go on: another has begun on the same engine"
                    )
            if engine.is_cancelled:
                for request in chain(live.values(), requests):
                    yield from scheduler.cancel(request)
                return
    finally:
        if engine.is_at(generation):
            engine.text.hold(scheduler.close())
