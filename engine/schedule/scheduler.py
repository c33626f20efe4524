"""Continuous batching: every step has the decode tokens of running requests and chunks of prompts.

A request waits until there are a sequence and cells for it. Shared prefixes are evaluated once.
When cells run out, the latest run is preempted: its cells are freed, its sampler is kept, and its
text is recomputed later. As logits depend neither on the batch nor on chunking, every answer is
bit-identical to that of its prompt alone.

Exceptions, as for steps: numerics "fast", and the `union` of active neurons.
"""

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.checks import PromptError, check_prompt
from engine.errors import EngineError
from engine.generation.completion import Completion, Piece
from engine.generation.reading import Likelihoods
from engine.generation.timings import Timings
from engine.model import Model
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Row
from engine.schedule.pace import Pace
from engine.schedule.request import Order, Request, Run
from engine.schedule.slots import Slots, common_prefix
from kernels.kernel import Kernel

MIN_SHARED = 16  # tokens: the shortest prefix worth waiting for


@dataclass(frozen=True, slots=True)
class Serving:
    """What a scheduler uses of an engine: encoding of prompts, creation of completions (`index` of
    a request), and the kernel for prompt log-probabilities."""

    model: Model
    encode: Callable[[str | Sequence[int], SamplingParams], list[int]]
    completion: Callable[[int, list[int], SamplingParams], Completion]
    log_sum_exp: Callable[[], Kernel]
    timings: Timings


@dataclass(frozen=True, slots=True)
class Part:
    """The next `count` tokens of a run in a step, the last `wanted` of which need logits.
    `decodes`: it is a decode token, not prefill."""

    run: Run
    count: int
    wanted: int
    decodes: bool = False


StepOutput = tuple[Request, Piece | None]  # no piece: the request failed, or its scoring ended


def _argmax_bans(parts: Sequence[Part]) -> list[frozenset[int]] | None:
    """For each wanted row the tokens that its argmax must not be; None if any needs its logits."""
    found: list[frozenset[int]] = []
    for part in parts:
        run = part.run
        bans = run.completion.sampler.argmax_bans if run.completion else None
        if bans is None or run.reading:
            return None
        found += [bans] * part.wanted
    return found


class Stepper(Protocol):
    """Runs steps for requests: a Scheduler for any number, or generation/decoding.py for a single
    text, with speculative decoding and context shift."""

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do."""

    def add(self, request: Request) -> None:
        """Queue a request."""

    def step(self) -> list[StepOutput]:
        """Schedule tokens, evaluate them, and sample."""

    def cancel(self, request: Request) -> list[StepOutput]:
        """Cancel a request; returns its last pieces."""

    def close(self) -> list[int] | None:
        """Stop; returns the text in sequence 0, if the engine does not have it already."""


class Scheduler:
    """Requests enter by `add`; `step` returns outputs, until there is no `has_work`.

    `held` is the text in the cache's sequence 0; `close` returns its text at the end. Not
    thread-safe.
    """

    def __init__(self, serving: Serving, held: Sequence[int] = ()) -> None:
        self._serving, self._model = serving, serving.model
        self._cells, self._method = serving.model.cells, serving.model.method
        self._slots, self._pace = Slots(self._cells, held), Pace()
        self._most = min(self._cells.n_sequences, self._model.limits["outputs"])
        self._waiting: dict[Order, tuple[Request, Run | None]] = {}
        self._queue: list[Order] = []  # a heap; may contain orders no longer waiting
        self._running: list[Run] = []
        self._arrivals = 0
        self._blocked = False  # no admission until a run leaves or a request arrives
        self.evaluated = 0  # tokens, in all

    def add(self, request: Request) -> None:
        """Queue a request; it is not encoded or checked before admission."""
        self._arrivals += 1
        request.arrival = self._arrivals
        self._push((request.priority, self._arrivals, 0), request, None)
        self._blocked = False

    def _push(self, order: Order, request: Request, run: Run | None) -> None:
        if not self._waiting:
            self._queue.clear()
        self._waiting[order] = request, run
        heapq.heappush(self._queue, order)

    def _dequeue(self, request: Request) -> list[Run]:
        """Remove a request from the queue; returns its preempted runs."""
        orders = ((request.priority, request.arrival, i) for i in range(request.params.n))
        left = [self._waiting.pop(order, (request, None)) for order in orders]
        return [run for _, run in left if run]

    @property
    def waiting(self) -> int:
        """Number of waiting requests."""
        return len(self._waiting)

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._waiting or self._running)

    def cancel(self, request: Request) -> list[StepOutput]:
        """Cancel a request; returns its last pieces, with text that was held back."""
        request.cancelled = True
        own = [run for run in self._running if run.request is request]
        for run in own:
            self._release(run)
        preempted = self._dequeue(request)
        outputs: list[StepOutput] = []
        if request.finished:
            return outputs
        live = {one.index: one for run in (*own, *preempted) if (one := run.completion)}
        over = {piece.index for piece in request.pieces if piece.finish_reason}
        for index in range(request.params.n):
            if index not in over:
                one = live.get(index)
                piece = one.cancel() if one else Piece("", None, 0.0, index, "cancelled")
                outputs.append(self._emit(request, piece))
        return outputs

    def step(self) -> list[StepOutput]:
        """Admit requests, evaluate a step, sample."""
        outputs = self._admit()
        if parts := self._parts():
            started = time.perf_counter()
            rows = self._evaluate(parts, outputs)
            self._record(parts, time.perf_counter() - started)
            with self._serving.timings.sample.measure(sum(bool(part.wanted) for part in parts)):
                for part, own in rows:
                    self._sample(part, own, outputs)
        return outputs

    def close(self) -> list[int]:
        """Stop; returns the text in sequence 0."""
        self._waiting, self._queue, self._running = {}, [], []
        return self._slots.close()

    # Admission and preemption

    def _admit(self) -> list[StepOutput]:
        """Admit waiting requests in order, while there are sequences and cells."""
        outputs: list[StepOutput] = []
        while self._waiting and len(self._running) < self._most and not self._blocked:
            if (order := self._queue[0]) not in self._waiting:
                heapq.heappop(self._queue)
                continue
            request, run = self._waiting[order]
            try:
                if run is None and not request.tokens:
                    request.tokens = self._serving.encode(request.prompt, request.params)
                    check_prompt(request.tokens, self._model.config.vocab, self._cells.capacity)
                if not self._try_admit(order, request, run):
                    break
            except EngineError as error:
                outputs.append(self._fail(request, error))
        return outputs

    def _try_admit(self, order: Order, request: Request, run: Run | None) -> bool:
        """Try to admit the first waiting request; returns whether it runs now."""
        text = request.tokens + (run.drawn if run else [])
        index, fresh = order[2], run is None
        scored = request.params.prompt_logprobs is not None and index == 0
        if run:
            most = run.first
        elif request.reading:
            most = request.reading.first
        else:
            most = 0 if scored else len(text) - 1
        if self._method.stretch and scored:
            raise PromptError("prompt_logprobs and prompt_attention exclude each other")
        if not request.reading:
            most = self._method.max_shared(most, len(request.tokens))
        elif self._method.stretch:  # scoring needs full attention
            most = 0
        if most and self._shares_soon(text, most):
            return False
        if run is None:
            run = Run(request, None, order, request.reading)
            if not request.reading:
                run.completion = self._serving.completion(index, request.tokens, request.params)
            if scored:
                run.reading = Likelihoods(request.tokens, 0, self._serving.log_sum_exp())
        slot = self._slots.allocate(text, most)
        held = len(self._slots.texts[slot])
        wanted = len(text) - held + len(self._running)
        if self._running and not self._slots.make_room(wanted):
            self._slots.release(slot)
            self._blocked = True
            return False
        heapq.heappop(self._queue)
        del self._waiting[order]
        if fresh and index + 1 < request.params.n:
            self._push((order[0], order[1], index + 1), request, None)
        if not request.started:
            request.started, request.cached = time.perf_counter(), held
        run.slot, run.held = slot, held
        if request.reading:
            self._method.begin_full(slot)
        else:
            self._method.begin(slot, len(request.tokens))
            self._method.prefill_from(slot, held, len(request.tokens))
        self._running.append(run)
        self._running.sort(key=lambda one: one.order)
        return True

    def _shares_soon(self, text: Sequence[int], most: int) -> bool:
        """Whether a running prefill will soon have evaluated more of this text's prefix than is
        cached, and enough of it to be worth waiting."""
        coming = [
            min(common_prefix(run.request.tokens, text), most)
            for run in self._running
            if run.held < len(run.request.tokens)
        ]
        if (soon := max(coming, default=0)) < MIN_SHARED:
            return False
        return soon > max(min(common_prefix(held, text), most) for held in self._slots.texts)

    def _release(self, run: Run) -> None:
        self._running.remove(run)
        self._slots.release(run.slot)
        run.slot = -1
        self._blocked = False

    def _preempt(self, run: Run) -> None:
        """Preempt a run: free its cells, keep its sampler, queue it again."""
        self._slots.truncate(run.slot, 0)
        self._release(run)
        run.held = 0
        if run.reading:
            run.reading.reset()
        self._push(run.order, run.request, run)
        self._blocked = True

    def _fail(self, request: Request, error: Exception) -> StepOutput:
        """End a request with an error."""
        self.remove(request)
        request.fail(error)
        return request, None

    def remove(self, request: Request) -> None:
        """Remove a request without output."""
        for run in [run for run in self._running if run.request is request]:
            self._release(run)
        self._dequeue(request)

    # Composition of a step

    def _parts(self) -> list[Part]:
        """Decode tokens of running completions, then chunks of prompts, in order."""
        budget, outputs = self._model.limits["tokens"], self._model.limits["outputs"]
        parts: list[Part] = []
        for run in list(self._running):
            if (
                run.slot >= 0
                and run.is_decoding
                and len(parts) < budget
                and self._reserve(run, parts)
            ):
                parts.append(Part(run, 1, 1, decodes=True))
        left = min(budget - len(parts), self._pace.prefill_budget(budget)) if parts else budget
        spare = outputs - len(self._running)  # for readings, which need several rows
        for run in list(self._running):
            if run.slot < 0 or run.is_decoding or left <= 0:
                continue
            if stretch := self._next_chunk(run):
                # a chunk of sparse prefill is indivisible, and there is one per step
                if stretch > budget - len(parts) or any(self._next_chunk(p.run) for p in parts):
                    continue
                if count := self._reserve(run, parts, stretch, stretch):
                    ends = run.held + count == run.length
                    parts.append(Part(run, count, int(ends)))
                    left -= count
                continue
            begin = max(0, run.first - run.held)  # tokens whose rows are not needed
            count = min(run.length - run.held, left, begin + 1 + spare)
            if self._method.ends_prefill and run.held < (prompt := len(run.request.tokens)):
                count = min(count, prompt - run.held)
            elif self._method.max_decode and not run.request.reading:
                count = min(count, self._method.max_decode)
            if count := self._reserve(run, parts, count):
                wanted = max(0, count - begin)
                spare -= max(0, wanted - 1)
                parts.append(Part(run, count, wanted))
                left -= count
        return [part for part in parts if part.run.slot >= 0]

    def _next_chunk(self, run: Run) -> int:
        """Size of the next chunk of a prompt with sparse prefill attention; 0 for others."""
        prompt, stretch = len(run.request.tokens), self._method.stretch
        if not stretch or run.request.reading or run.held >= prompt:
            return 0
        return min(prompt, run.held // stretch * stretch + stretch) - run.held

    def _reserve(self, run: Run, parts: list[Part], count: int = 1, least: int = 1) -> int:
        """How many of `count` cells a run gets besides those of `parts`. While there are fewer than
        `least`, the latest run is preempted, possibly this one."""
        while True:
            taken = sum(part.count for part in parts if part.run.slot >= 0)
            self._slots.make_room(taken + count)
            if (free := self._cells.free - taken) >= least:
                return min(free, count)
            last = self._running[-1]
            self._preempt(last)
            if last is run:
                return 0

    def _evaluate(
        self, parts: list[Part], outputs: list[StepOutput]
    ) -> Iterator[tuple[Part, list[Row]]]:
        """Run a step; yields the parts with their rows. If it fails, each part is run alone, and
        only the failing requests end."""
        try:
            return self._split(parts, self._run(parts))
        except (EngineError, ArithmeticError) as error:
            if len(parts) == 1:
                outputs.append(self._fail(parts[0].run.request, error))
                return iter(())
        return self._evaluate_each(parts, outputs)

    def _evaluate_each(
        self, parts: list[Part], outputs: list[StepOutput]
    ) -> Iterator[tuple[Part, list[Row]]]:
        for part in parts:
            if part.run.slot >= 0:
                yield from self._evaluate([part], outputs)

    def _split(self, parts: list[Part], rows: Sequence[Row]) -> Iterator[tuple[Part, list[Row]]]:
        at = 0
        for part in parts:
            own = list(rows[at : at + part.wanted])
            at += part.wanted
            if own:
                yield part, own

    def _run(self, parts: list[Part]) -> Sequence[Row]:
        """Run a step; returns the wanted rows, logits [vocab] or an argmax, valid until the next
        step."""
        tokens: list[int] = []
        positions: list[int] = []
        sequences: list[tuple[int]] = []
        wanted: list[int] = []
        hidden: set[int] = set()
        for part in parts:
            run = part.run
            if run.reading and run.reading.hidden:
                hidden.update(range(len(wanted), len(wanted) + part.wanted))
            tokens += run.next_tokens(part.count)
            positions += range(run.held, run.held + part.count)
            sequences += [(run.slot,)] * part.count
            wanted += range(len(tokens) - part.wanted, len(tokens))
        bans = _argmax_bans(parts)
        found = self._model.rows(tokens, positions, sequences, wanted, bans, hidden)
        at = 0
        for part in parts:
            part.run.held += part.count
            self._slots.texts[part.run.slot] += tokens[at : at + part.count]
            at += part.count
        for part in parts if self._method.ends_prefill else ():
            self._end_prefill(part.run)
        self.evaluated += len(tokens)
        return found

    def _end_prefill(self, run: Run) -> None:
        """Apply the eviction policy if the prompt is complete. Cells shared with other sequences
        need copies: if there are no cells for them, the latest runs are preempted."""
        if run.slot < 0 or run.request.reading or run.held != len(run.request.tokens):
            return
        others = [other for other in self._running if other is not run]
        while not self._slots.make_room(self._method.cells_needed(run.slot)) and others:
            self._preempt(others.pop())
        self._method.finish(run.slot)

    def _record(self, parts: list[Part], seconds: float) -> None:
        """Record a step's time, divided between decode and prefill by tokens."""
        decoded = sum(part.count for part in parts if part.decodes)
        read = sum(part.count for part in parts) - decoded
        self._pace.record(decoded, read, seconds)
        for span, tokens in (
            (self._serving.timings.eval, decoded),
            (self._serving.timings.prompt, read),
        ):
            span.seconds += seconds * tokens / (decoded + read)
            span.tokens += tokens

    # Sampling

    def _sample(self, part: Part, rows: list[Row], outputs: list[StepOutput]) -> None:
        """Sample a run's next token if its text is evaluated, or end its reading."""
        run, request = part.run, part.run.request
        if run.slot < 0:  # another run of the request has failed
            return
        try:
            if run.reading:
                run.reading.receive(rows)
            if run.held < run.length:
                return
            completion = run.completion
            if completion is None:
                request.finish_reading()
                self._release(run)
                outputs.append((request, None))
                return
            if isinstance(run.reading, Likelihoods):
                completion.prompt_logprobs = (None, *run.reading.logprobs)
                run.reading = None
            piece = completion.sample(rows[-1])
            if not completion.finished and run.length > self._cells.capacity:
                piece = completion.finish(piece, "length")
        except Exception as error:  # fail this request only: logits processors are user code
            outputs.append(self._fail(request, error))
            return
        if piece.finish_reason:
            self._release(run)
        outputs.append(self._emit(request, piece))

    def _emit(self, request: Request, piece: Piece) -> StepOutput:
        request.add_piece(piece)
        return request, piece
