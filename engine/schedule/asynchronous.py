"""An engine for asyncio programs: a thread runs steps and delivers results to event loops."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Unpack, cast, overload

from engine.engine import Engine
from engine.errors import BusyError, ClosedError
from engine.generation import scoring
from engine.generation.completion import Piece
from engine.generation.embedding import Vectors, check_pooling, encode_texts, stack_embeddings
from engine.generation.reading import Reading
from engine.generation.results import RequestOutput
from engine.generation.scoring import Score
from engine.options import Fields, Options
from engine.sampling.params import SamplingParams
from engine.schedule.prompts import Prompt, is_single, make_requests
from engine.schedule.request import Request
from engine.schedule.scheduler import Scheduler, StepOutput
from engine.speculation.settings import Settings


class Answer:
    """A submitted prompt: `async for piece in answer`, or `await answer.result()`.

    If the prompt fails, awaiting the answer raises its error. It belongs to the event loop in which
    it was created.
    """

    def __init__(self, request: Request, engine: "AsyncEngine") -> None:
        self.request, self._engine = request, engine
        self.loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        self._done = asyncio.Event()

    def cancel(self) -> None:
        """Stop generating; may be called from any thread. The last pieces are "cancelled"."""
        with suppress(ClosedError):  # closing has ended it
            self._engine.call_between_steps(lambda scheduler: scheduler.cancel(self.request))

    async def wait(self) -> None:
        """Wait until the request has finished or failed."""
        await self._done.wait()

    async def result(self) -> RequestOutput:
        """Wait for the complete result."""
        await self.wait()
        if self.request.error:
            raise self.request.error
        return self._engine.result(self.request)

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while (piece := await self._pieces.get()) is not None:
            yield piece
        self._pieces.put_nowait(None)  # a second iteration ends at once
        if self.request.error:
            raise self.request.error

    def deliver(self, pieces: Sequence[Piece | None], over: bool) -> None:
        """Deliver pieces, in the event loop; `over` ends the answer."""
        for piece in pieces:
            if piece is not None:
                self._pieces.put_nowait(piece)
        if over and not self._done.is_set():
            self._done.set()
            self._pieces.put_nowait(None)


class AsyncEngine:
    """An engine for asyncio: any number of tasks may submit, stream and cancel prompts.

    >>> async with AsyncEngine.load("model.gguf", threads=2) as engine:
    ...     one, other = await asyncio.gather(engine.generate("A cat"), engine.generate("A dog"))
    ...     async for piece in engine.stream("Once upon a time"):
    ...         print(piece.text, end="")
    ...     score = await engine.score("A cat", " sat")

    Each answer is bit-identical to that of its prompt alone. Waiting prompts are not evaluated or
    encoded. The wrapped engine must not be used otherwise while this one is open.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._changed = threading.Condition()
        self._calls: list[Callable[[Scheduler], list[StepOutput] | None]] = []
        self._answers: dict[Request, Answer] = {}
        self._closing, self._count = False, 0
        self.engine.samplers.kernel("log_sum_exp")  # before several threads do
        self._start()
        self._thread = threading.Thread(target=self._run_steps, name="assay-async", daemon=True)
        self._thread.start()

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: Options | None = None,
        *,
        draft: str | Path | None = None,
        speculation: Settings | None = None,
        sampling: SamplingParams | None = None,
        **overrides: Unpack[Fields],
    ) -> "AsyncEngine":
        """Load an engine; see `Engine.load`."""
        engine = Engine.load(
            path, options, draft=draft, speculation=speculation, sampling=sampling, **overrides
        )
        try:
            return cls(engine)
        except BaseException:
            engine.close()
            raise

    def submit(
        self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0
    ) -> Answer:
        """Queue a prompt; the smallest `priority` is admitted first."""
        return self._submit(Request(self._next_id(), prompt, params or SamplingParams(), priority))

    def _next_id(self) -> str:
        self._count += 1
        return str(self._count)

    def _submit(self, request: Request) -> Answer:
        answer = Answer(request, self)

        def enter(scheduler: Scheduler) -> None:
            self._answers[request] = answer
            scheduler.add(request)

        self.call_between_steps(enter)
        return answer

    def call_between_steps(self, what: Callable[[Scheduler], list[StepOutput] | None]) -> None:
        """Run `what` between two steps, in the engine's thread, and deliver its outputs."""
        with self._changed:
            if self._closing:
                raise ClosedError("this engine was closed")
            self._calls.append(what)
            self._changed.notify()

    @overload
    async def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts
        self, prompts: Prompt, params: SamplingParams | None = None, *, priorities: None = None
    ) -> RequestOutput: ...
    @overload
    async def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priorities: Sequence[int] | None = None,
    ) -> list[RequestOutput]: ...
    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priorities: Sequence[int] | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """See `Engine.generate`. Cancelling the caller cancels its prompts."""
        one = is_single(prompts)
        many = [cast(Prompt, prompts)] if one else cast(Sequence[Prompt], prompts)
        answers = [self._submit(request) for request in make_requests(many, params, priorities)]
        await self._wait_all(answers)
        if one:
            return await answers[0].result()
        return [self.result(answer.request) for answer in answers]

    async def _wait_all(self, answers: Sequence[Answer]) -> None:
        """Wait for all answers; cancelling the caller cancels them."""
        try:
            for answer in answers:
                await answer.wait()
        except asyncio.CancelledError:
            for answer in answers:
                answer.cancel()
            raise

    @overload
    async def score(self, prompts: str, continuations: str, *, priority: int = 0) -> Score: ...
    @overload
    async def score(
        self,
        prompts: Prompt | Sequence[Prompt],
        continuations: Prompt | Sequence[Prompt],
        *,
        priority: int = 0,
    ) -> Score | list[Score]: ...
    async def score(
        self,
        prompts: Prompt | Sequence[Prompt],
        continuations: Prompt | Sequence[Prompt],
        *,
        priority: int = 0,
    ) -> Score | list[Score]:
        """See `Engine.score`; runs along with other requests."""
        engine = self.engine
        pairs = await asyncio.to_thread(scoring.pairs_of, engine, prompts, continuations)
        readings = dict(scoring.readings(engine, pairs))
        await self._read(readings.values(), priority)
        found = [scoring.score(pair, readings[number]) for number, pair in enumerate(pairs)]
        return found[0] if is_single(prompts) and is_single(continuations) else found

    async def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        pooling: str = "mean",
        *,
        normalize: bool = True,
        priority: int = 0,
    ) -> Any:
        """See `Engine.embed`; runs along with other requests."""
        check_pooling(pooling)
        self.engine.model.check_hidden()
        one = is_single(texts)
        many = cast(Sequence[Prompt], [texts] if one else texts)
        tokens = await asyncio.to_thread(encode_texts, self.engine, many)
        vectors = [Vectors(text, pooling, normalize) for text in tokens]
        await self._read(vectors, priority)
        found = [each.pooled() for each in vectors]
        return (
            found[0] if one else stack_embeddings(found, pooling, self.engine.model.config.hidden)
        )

    async def _read(self, readings: Iterable[Reading], priority: int) -> None:
        """Submit scoring requests and wait for them; raises the first error."""
        requests = [Request.of(self._next_id(), reading, priority) for reading in readings]
        await self._wait_all([self._submit(request) for request in requests])
        for request in requests:
            if request.error:
                raise request.error

    async def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, priority: int = 0
    ) -> AsyncIterator[Piece]:
        """Yield pieces as they are generated. Closing the iterator, or cancelling its task, cancels
        the prompt."""
        answer = self.submit(prompt, params, priority=priority)
        try:
            async for piece in answer:
                yield piece
        finally:
            answer.cancel()

    def result(self, request: Request) -> RequestOutput:
        """The result of a finished request."""
        return request.result(self.engine.tokenizer)

    async def aclose(self) -> None:
        """Fail pending requests with `ClosedError` and close the engine."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Like `aclose`, but blocks until the current step ends."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()
        self.engine.close()

    async def __aenter__(self) -> "AsyncEngine":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    # In the engine's thread

    def _start(self) -> None:
        self._generation = self.engine.begin()
        self._scheduler = Scheduler(self.engine.serving(), self.engine.text.held)
        self.engine.text.set_held([])  # now the scheduler's

    def _fail_all(self, error: Exception) -> None:
        """Fail all pending requests with this error."""
        for request in list(self._answers):
            request.fail(error)
            self._deliver([(request, None)])
        if self.engine.is_current(self._generation):
            self.engine.text.set_held(self._scheduler.close())

    def _run_steps(self) -> None:
        while self._wait_for_work():
            try:
                if not self.engine.is_current(self._generation):
                    raise BusyError("another generation has begun on the same engine")
                self._deliver(self._scheduler.step())
            except Exception as error:  # later requests get a new scheduler
                self._fail_all(error)
                self._start()
        self._fail_all(ClosedError("this engine was closed"))

    def _wait_for_work(self) -> bool:
        """Wait for work, or for closing; returns whether there is a step to run."""
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._calls or self._closing or self._scheduler.has_work
                )
                calls, self._calls = self._calls, []
                closing = self._closing
            for call in calls:
                self._deliver(call(self._scheduler) or [])
            if closing or self._scheduler.has_work:
                return not closing

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        """Deliver outputs to their event loops, one call for each answer."""
        pieces: dict[Request, list[Piece | None]] = {}
        for request, piece in outputs:
            pieces.setdefault(request, []).append(piece)
        for request, come in pieces.items():
            answer = self._answers.get(request)
            if request.finished:
                self._answers.pop(request, None)
            if answer:
                try:
                    answer.loop.call_soon_threadsafe(answer.deliver, come, request.finished)
                except RuntimeError:  # its loop is closed
                    self._answers.pop(request, None)
                    self._scheduler.cancel(request)
