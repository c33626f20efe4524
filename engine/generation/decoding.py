"""Decoding one text: a step for each token, or speculative decoding; and the stepper that a single
request uses."""

from collections.abc import Callable, Sequence
from typing import Protocol

from engine.cache.method import CacheMethod
from engine.cache.prefix_cache import PrefixCache
from engine.checks import check_step
from engine.compile.executable import stepped
from engine.generation.completion import Completion, Piece
from engine.generation.reading import Likelihoods
from engine.generation.timings import Drafting
from engine.gpu.launched_step import LaunchedStep
from engine.gpu.mirror import LEFT
from engine.model import Model
from engine.sampling.sampler import Row, Sampler
from engine.schedule.request import Request
from engine.schedule.scheduler import Serving, StepOutput


class Decoding(Protocol):
    """Decodes the text in sequence 0. A generation calls `sample`, `has_room` and `run` in turn."""

    @property
    def timings(self) -> Drafting | None:
        """Statistics of speculative decoding, if it is used."""

    def begin(self, prompt: Sequence[int]) -> None:
        """Start a text whose prompt is in the KV cache."""

    def sample(self, completion: Completion, row: Row) -> Piece:
        """Sample the next token."""

    def has_room(self, completion: Completion) -> bool:
        """Whether there are cells for the next step."""

    def run(self, completion: Completion) -> Row:
        """Evaluate the last token: returns logits [vocab], valid until the next step, or the argmax
        where a GPU computes it."""

    def drop_drafts(self) -> None:
        """Remove cells other than the text's from the KV cache, such as rejected drafts."""


class PlainDecoding:
    """One step for each token. With greedy sampling on a GPU, the next step is begun before its
    token is known on the host, so that it overlaps with the host's work."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.timings: Drafting | None = None
        self._next: LaunchedStep | None = None  # a step begun in advance

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def sample(self, completion: Completion, row: Row) -> Piece:
        return completion.sample(row)

    def has_room(self, completion: Completion) -> bool:  # noqa: ARG002
        return self._next is not None or self._model.cells.free > 0

    def run(self, completion: Completion) -> Row:
        model, bans = self._model, completion.sampler.argmax_bans
        if bans is None or not self._can_begin_early():
            return self._step(completion)
        now, self._next = self._next, None
        now = now or self._begin_step(completion.tokens[-1], model.cells.next_position(0))
        try:
            if now is model.latest and self._needs_next_step(completion, now.position + 1):
                self._next = self._begin_step(LEFT, now.position + 1)
            row = now.row()
        except BaseException:
            self.drop_drafts()
            now.drop()
            raise
        if row.token not in bans:
            return row
        self.drop_drafts()  # it has overwritten the logits, which are needed
        now.drop()
        return self._step(completion)

    def _step(self, completion: Completion) -> Row:
        """Evaluate the last token in a step of its own."""
        self.drop_drafts()
        where, bans = (self._model.cells.next_position(0),), completion.sampler.argmax_bans
        own = bans if bans is None else (bans,)
        (row,) = self._model.rows(completion.tokens[-1:], where, ((0,),), (0,), own)
        return row

    def _can_begin_early(self) -> bool:
        """Whether a greedy step can begin before the last token is known on the host: the GPU feeds
        its own argmax, and the cell can be dropped again."""
        model = self._model
        greedy = model.executable.greedy if model.executable else None
        plain = type(model.method) is CacheMethod and not model.cells.states
        return greedy is not None and greedy.feeds and plain

    def _begin_step(self, token: int, position: int) -> LaunchedStep:
        """Begin the next step without waiting for it; the token LEFT stands for the result of the
        model's latest step."""
        model, where, sequences, wanted = self._model, (position,), ((0,),), (0,)
        with model.exclusive() as ready:
            check_step(model.config, model.limits, (max(token, 0),), where, sequences, wanted)
            model.latest, greedy = None, ready.greedy
            assert greedy is not None
            with stepped(ready, model.cells, (token,), where, sequences, wanted, argmax=True):
                model.latest = LaunchedStep(position, model.cells, greedy.of(1))
            return model.latest

    def _needs_next_step(self, completion: Completion, position: int) -> bool:
        """Whether the token that is being computed will need a step, at `position`."""
        most, learned = completion.params.max_tokens, self._model.config.positions
        wanted = most is None or len(completion.tokens) + 1 < most
        return wanted and self._model.cells.free > 0 and not 0 < learned <= position

    def drop_drafts(self) -> None:
        if self._next:
            self._next.drop()
            self._next = None


class SingleTextStepper:
    """Steps for a single request with one completion, in sequence 0. With `shifts`, a full context
    is shifted: the older half after the first `keep` tokens is dropped."""

    waiting = 0

    def __init__(
        self,
        serving: Serving,
        text: PrefixCache,
        decoding: Decoding,
        on_sampled: Callable[[Sampler], None],
        shifts: bool,
        keep: int,
    ) -> None:
        """`on_sampled` is called with the sampler after each token."""
        self._serving, self._text, self._decoding = serving, text, decoding
        self._on_sampled, self._shifts, self._keep = on_sampled, shifts, keep
        self._request: Request | None = None
        self._completion: Completion | None = None  # after prefill

    def add(self, request: Request) -> None:
        self._request = request

    @property
    def has_work(self) -> bool:
        return not (self._completion and self._completion.finished)

    def step(self) -> list[StepOutput]:
        """Prefill the prompt, or evaluate the last token; then sample the next one."""
        assert self._request
        row = self._decode(self._completion) if self._completion else self._prefill(self._request)
        return [(self._request, self._sample(row))]

    def cancel(self, request: Request) -> list[StepOutput]:
        if not self._completion or self._completion.finished:
            return []
        return [(request, self._completion.cancel())]

    def close(self) -> None:
        """Leave the text's cells in the KV cache, and no others."""
        self._decoding.drop_drafts()

    def _prefill(self, request: Request) -> Row:
        """Prefill the prompt; returns the logits of its last token."""
        prompt, params, timings = request.tokens, request.params, self._serving.timings
        completion = self._serving.completion(0, prompt, params)
        scored = None
        if params.prompt_logprobs is not None:
            scored = Likelihoods(prompt, 0, self._serving.log_sum_exp())
        row = self._text.prefill(prompt, timings.prompt, scored)
        if scored:
            completion.prompt_logprobs = (None, *scored.logprobs)
        self._decoding.begin(prompt)
        timings.speculation = self._decoding.timings
        self._completion = completion
        return row

    def _decode(self, completion: Completion) -> Row:
        """Evaluate the last sampled token."""
        if not self._decoding.has_room(completion):
            self._text.shift(self._keep)
        with self._serving.timings.eval.measure(1):
            row = self._decoding.run(completion)
        self._text.append(completion.tokens[-1])
        return row

    def _sample(self, row: Row) -> Piece:
        """Sample the next token."""
        completion, timings = self._completion, self._serving.timings
        assert completion
        timings.cache = self._serving.model.cache_bytes
        with timings.sample.measure(1):
            piece = self._decoding.sample(completion, row)
        self._text.drawn = completion.tokens[-1:]
        self._on_sampled(completion.sampler)
        if not (completion.finished or self._shifts or self._decoding.has_room(completion)):
            piece = completion.finish(piece, "length")
        return piece
