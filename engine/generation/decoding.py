"""One text, and how the tokens behind its prompt come: a step for each, or drafts and steps that
verify them."""

from collections.abc import Callable, Sequence
from typing import Protocol

from engine.cache.prefix_cache import PrefixCache
from engine.generation.completion import Completion, Piece
from engine.generation.reading import Likelihoods
from engine.generation.timings import Drafting
from engine.gpu.ahead import Ahead
from engine.gpu.mirror import LEFT
from engine.model import Model
from engine.sampling.sampler import Row, Sampler
from engine.schedule.request import Request
from engine.schedule.scheduler import Serving, StepOutput


class Decoding(Protocol):
    """What a generation asks for its text, that of sequence 0, in turns: `sample`, `has_room` and
    `run`."""

    @property
    def timings(self) -> Drafting | None:
        """Of drafts, if there are any."""

    def begin(self, prompt: Sequence[int]) -> None:
        """A text begins, whose cells the model has."""

    def sample(self, completion: Completion, row: Row) -> Piece:
        """Draw its next token."""

    def has_room(self, completion: Completion) -> bool:
        """Whether it can go on without another cell being freed."""

    def run(self, completion: Completion) -> Row:
        """What follows its last token: logits [vocab], valid until the next step, or what is wanted
        of them where they are on a device."""

    def settle(self) -> None:
        """Let the cache hold the cells of the text and no others."""


class OneByOne:
    """A step for each token. Where a device has the tokens of greedy text, the step of the next one
    is begun before that is known here: it runs while what came before it is looked at."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.timings: Drafting | None = None
        self._next: Ahead | None = None  # the step of the last token, if it was begun

    def begin(self, prompt: Sequence[int]) -> None:
        pass

    def sample(self, completion: Completion, row: Row) -> Piece:
        return completion.sample(row)

    def has_room(self, completion: Completion) -> bool:  # noqa: ARG002
        return self._next is not None or self._model.cells.free > 0

    def run(self, completion: Completion) -> Row:
        model, argmax = self._model, completion.sampler.takes_argmax
        if not (argmax and model.runs_ahead):
            self.settle()
            position = model.cells.next_position(0)
            (row,) = model.rows(completion.tokens[-1:], (position,), ((0,),), (0,), argmax)
            return row
        now, self._next = self._next, None
        now = now or model.begin(completion.tokens[-1], model.cells.next_position(0))
        try:
            if now is model.latest and self._goes_on(completion, now.position + 1):
                self._next = model.begin(LEFT, now.position + 1)
            return now.row()
        except BaseException:
            self.settle()
            now.drop()
            raise

    def _goes_on(self, completion: Completion, position: int) -> bool:
        """Whether the token that the step of the last one finds may want a step, at a position."""
        most, learned = completion.params.max_tokens, self._model.config.positions
        wanted = most is None or len(completion.tokens) + 1 < most
        return wanted and self._model.cells.free > 0 and not 0 < learned <= position

    def settle(self) -> None:
        if self._next:
            self._next.drop()
            self._next = None


class OneText:
    """Steps for one request of one completion, whose text is sequence 0's. Where the context is
    full and it `shifts`, the older half beyond the first `keep` tokens is forgotten."""

    waiting = 0

    def __init__(
        self,
        serving: Serving,
        text: PrefixCache,
        decoding: Decoding,
        drew: Callable[[Sampler], None],
        shifts: bool,
        keep: int,
    ) -> None:
        """`drew` hears whose turn it was to draw."""
        self._serving, self._text, self._decoding = serving, text, decoding
        self._drew, self._shifts, self._keep = drew, shifts, keep
        self._request: Request | None = None
        self._completion: Completion | None = None  # once the prompt is read

    def add(self, request: Request) -> None:
        self._request = request

    @property
    def work(self) -> bool:
        return not (self._completion and self._completion.finished)

    def step(self) -> list[StepOutput]:
        """Read the prompt, or else the token drawn last, and draw the next one."""
        assert self._request
        row = self._run(self._completion) if self._completion else self._read(self._request)
        return [(self._request, self._drawn(row))]

    def cancel(self, request: Request) -> list[StepOutput]:
        if not self._completion or self._completion.finished:
            return []
        return [(request, self._completion.cancelled())]

    def close(self) -> None:
        """The cache holds the cells of the text and no others."""
        self._decoding.settle()

    def _read(self, request: Request) -> Row:
        """The logits behind the prompt."""
        prompt, params, timings = request.tokens, request.params, self._serving.timings
        completion = self._serving.completion(0, prompt, params)
        scored = None
        if params.prompt_logprobs is not None:
            scored = Likelihoods(prompt, 0, self._serving.log_sum_exp())
        row = self._text.read(prompt, timings.prompt, scored)
        if scored:
            completion.prompt_logprobs = (None, *scored.logprobs)
        self._decoding.begin(prompt)
        timings.speculation = self._decoding.timings
        self._completion = completion
        return row

    def _run(self, completion: Completion) -> Row:
        """What follows the token drawn last."""
        if not self._decoding.has_room(completion):
            self._text.shift(self._keep)
        with self._serving.timings.eval.measure(1):
            row = self._decoding.run(completion)
        self._text.go_on(completion.tokens[-1])
        return row

    def _drawn(self, row: Row) -> Piece:
        """The next token."""
        completion, timings = self._completion, self._serving.timings
        assert completion
        timings.cache = self._serving.model.cache_bytes
        with timings.sample.measure(1):
            piece = self._decoding.sample(completion, row)
        self._text.drawn = completion.tokens[-1:]
        self._drew(completion.sampler)
        if not (completion.finished or self._shifts or self._decoding.has_room(completion)):
            piece = completion.ended(piece, "length")
        return piece
