"""Continuous batching: with arrivals, cancellations and preemption, answers, scores and hidden
states are those of each request alone."""

import gc
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from conformance.support.models.spelling import EOS, LETTERS, letters
from engine import Engine, Piece, SamplingParams
from engine.errors import BusyError, EngineError
from engine.generation.embedding import Vectors
from engine.generation.reading import Likelihoods, Reading
from engine.schedule.prompts import QUEUED_PER_SEQUENCE
from engine.schedule.request import Request
from engine.schedule.scheduler import Scheduler
from reference.op import Array

CONTEXT = 44  # cells: two long texts do not fit beside each other
STEM = "the cat sat on the mat and"
PROMPTS = [
    *(letters(STEM[:end]) for end in (1, 9, 18, 26)),
    letters(STEM + " ran"), letters(STEM[:20] + "dog"), letters("a dog"), letters("z" * 30),
    letters("ab" * 21), letters("q" * CONTEXT), letters("q" * (CONTEXT + 1)), [],
]  # fmt: skip
FORBIDDEN = {EOS: -np.inf}
HALF = "\N{REPLACEMENT CHARACTER}"  # of a character whose further bytes never came


def failing_processor(history: list[int], logits: Array) -> Array:
    """A processor that fails from some token on."""
    return logits if len(history) < 30 else logits[:7]


ASKED = [
    SamplingParams(max_tokens=5, temperature=0),
    SamplingParams(max_tokens=None, temperature=0, logit_bias=FORBIDDEN),
    SamplingParams(max_tokens=20, seed=1, logprobs=3, n=3),
    SamplingParams(max_tokens=9, seed=2, mirostat=2, ignore_eos=True),
    SamplingParams(max_tokens=24, seed=3, top_k=5, repetition_penalty=1.3, presence_penalty=0.5),
    SamplingParams(max_tokens=30, seed=4, temperature=1.5, stop=["a", "e"]),
    SamplingParams(max_tokens=12, seed=5, stop_token_ids=range(LETTERS, LETTERS + 9), min_tokens=4),
    SamplingParams(max_tokens=3, seed=6, prompt_logprobs=0),
    SamplingParams(max_tokens=30, seed=7, xtc_probability=0.5, dry_multiplier=0.8, top_p=0.9),
    SamplingParams(max_tokens=30, seed=8, n=2, logits_processors=[failing_processor]),
    SamplingParams(max_tokens=8, seed=9, truncate_prompt_tokens=12),
]


@pytest.fixture(scope="module", autouse=True)
def _engines(spelling: Path) -> Iterator[None]:
    """One that many requests share, and one that answers one by one, on other threads."""
    room = {"context": CONTEXT, "batch": 12}
    with (
        Engine.load(spelling, threads=1, sequences=4, outputs=5, **room) as shared,
        Engine.load(spelling, threads=2, **room) as lonely,
    ):
        Machine.shared, Machine.lonely = shared, lonely
        yield
        answer.cache_clear()


@cache
def answer(prompt: int, asked: int, index: int) -> tuple[list[Piece], str | None]:
    """The pieces of a completion that is alone, and the error that ended it, if any."""
    params = ASKED[asked]
    own = replace(params, n=1, seed=None if params.seed is None else params.seed + index)
    engine = Machine.lonely
    engine.reset()
    found: list[Piece] = []
    failure = None
    try:
        found.extend(engine.stream(PROMPTS[prompt], own))
    except EngineError as error:
        failure = str(error)
    if index and found:  # the first says what the prompt scored
        found[0] = replace(found[0], prompt_logprobs=None)
    return [replace(piece, index=index) for piece in found], failure


LONG_ENOUGH = [i for i, prompt in enumerate(PROMPTS) if 2 <= len(prompt) <= CONTEXT]


def reading(engine: Engine, prompt: int, hidden: bool, first: int) -> Vectors | Likelihoods:
    """Hidden states of a prompt's tokens, or log-likelihoods of those from number `first` on."""
    if hidden:
        return Vectors(PROMPTS[prompt], ("last", "mean")[first == 0], False)
    kernel = engine.samplers.kernel("log_sum_exp")
    return Likelihoods(PROMPTS[prompt], min(first, len(PROMPTS[prompt]) - 2), kernel)


def found(read: Reading) -> list[float]:
    return read.logprobs if isinstance(read, Likelihoods) else read.pooled().tolist()


@cache
def read_alone(prompt: int, hidden: bool, first: int) -> list[float]:
    """The same where no other request is active."""
    engine = Machine.lonely
    engine.reset()
    read = reading(engine, prompt, hidden, first)
    engine.begin_reading().collect(read, engine.timings.prompt)
    return found(read)


class Watched(Scheduler):
    """Counts rare events."""

    seen: ClassVar = Counter[str]()

    def _preempt(self, run):
        self.seen["put back"] += 1
        self.seen["put back while read"] += bool(run.reading)
        super()._preempt(run)

    def _shares_soon(self, text, most):
        found = super()._shares_soon(text, most)
        self.seen["waited for a prefix"] += found
        return found

    def _try_admit(self, order, request, run):
        found = super()._try_admit(order, request, run)
        self.seen["took a prefix"] += found and any(
            run.held > 1 and run.request is request for run in self._running
        )
        self.seen["had no room"] += self._blocked
        return found

    def _fail(self, request, error):
        self.seen["failed"] += 1
        self.seen["failed under way"] += bool(request.pieces)
        return super()._fail(request, error)


class Machine(RuleBasedStateMachine):
    """Requests arrive at any time, with any priority, and are cancelled at any time."""

    shared: Engine
    lonely: Engine

    @initialize(held=st.sampled_from([None, 2, 5]))
    def begin(self, held: int | None) -> None:
        """Sequence 0 may hold the text of an earlier generation."""
        self.shared.reset()
        if held is not None:
            list(self.shared.stream(PROMPTS[held], SamplingParams(max_tokens=4, seed=0)))
        self.scheduler = Watched(self.shared.serving(), self.shared.text.held)
        self.asked: dict[Request, tuple[int, int]] = {}
        self.readings: dict[Request, tuple[int, bool, int]] = {}

    @rule(
        prompt=st.integers(0, len(PROMPTS) - 1),
        asked=st.integers(0, len(ASKED) - 1),
        priority=st.sampled_from([0, 0, 0, -1, 1]),
    )
    def add(self, prompt: int, asked: int, priority: int) -> None:
        name = str(len(self.asked))
        request = Request(name, PROMPTS[prompt], ASKED[asked], priority)
        self.asked[request] = prompt, asked
        self.scheduler.add(request)

    @rule(
        prompt=st.sampled_from(LONG_ENOUGH),
        hidden=st.booleans(),
        first=st.sampled_from([0, 3, 20]),
        priority=st.sampled_from([0, 0, -1]),
    )
    def read(self, prompt: int, hidden: bool, first: int, priority: int) -> None:
        request = Request.of("", reading(self.shared, prompt, hidden, first), priority)
        self.readings[request] = prompt, hidden, first
        self.scheduler.add(request)

    @precondition(lambda self: self.scheduler.has_work)
    @rule(count=st.integers(1, 9))
    def step(self, count: int) -> None:
        for _ in range(count):
            for request, piece in self.scheduler.step():
                assert request in self.asked or request in self.readings
                assert not request.cancelled
                assert (piece is None) == (request.error is not None or request.read)

    @precondition(lambda self: self.asked or self.readings)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from([*self.asked, *self.readings]))
        finished = request.finished
        Watched.seen["cancelled under way"] += bool(request.pieces) and not finished
        said = self.scheduler.cancel(request)
        assert not (finished and said)
        assert all(piece and piece.finish_reason == "cancelled" for _, piece in said)
        assert request.finished

    @invariant()
    def cells_are_those_of_texts(self) -> None:
        """Every sequence holds its text, and other cells are free."""
        if not hasattr(self, "scheduler"):
            return
        cells, slots = self.shared.model.cells, self.scheduler._slots
        held = set[int]()
        for sequence, text in enumerate(slots.texts):
            assert cells.positions_of(sequence).tolist() == list(range(len(text)))
            held |= set(cells.list_of(sequence).tolist())
        assert cells.free == cells.capacity - len(held)
        running = self.scheduler._running
        assert slots.free + len(running) == cells.n_sequences
        assert all(slots.texts[run.slot] == run.next_tokens(0) + _evaluated(run) for run in running)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(5000):
            if not self.scheduler.has_work:
                break
            self.step(1)
            self.cells_are_those_of_texts()
        assert not self.scheduler.has_work
        for request, (prompt, asked) in self.asked.items():
            assert request.finished
            completions = [answer(prompt, asked, index) for index in range(ASKED[asked].n)]
            failures = {failure for _, failure in completions if failure}
            assert request.cancelled or bool(request.error) == bool(failures)
            assert not request.error or str(request.error) in failures
            for index, (alone, _) in enumerate(completions):
                said = [piece for piece in request.pieces if piece.index == index]
                if request.error:
                    assert said == alone[: len(said)]
                elif request.cancelled:
                    _assert_prefix(said, alone, bool(request.params.stop))
                else:
                    assert said == alone
        for request, asked in self.readings.items():
            assert request.finished
            assert not request.error
            Watched.seen["read"] += request.read
            assert request.cancelled or found(request.reading) == read_alone(*asked)
        self.shared.text.set_held(self.scheduler.close())


def _evaluated(run) -> list[int]:
    """The evaluated part of a run's text."""
    return (run.request.tokens + run.drawn)[: run.held]


def _assert_prefix(found: list[Piece], alone: list[Piece], stops: bool) -> None:
    """Assert that a cancelled completion gave a prefix of its full answer, then ended."""
    assert found[-1].finish_reason
    if found[-1].finish_reason == "cancelled":
        *found, last = found
        whole = "".join(piece.text for piece in alone)
        said = "".join(piece.text for piece in found)
        if not stops:  # what may begin a stop string is said when nothing more comes
            assert whole.startswith(said + last.text.rstrip(HALF))
    assert found == alone[: len(found)]


def test_schedule():
    """The machine's invariants hold, and all rare events have occurred."""
    more = settings(max_examples=4 * settings.default.max_examples, stateful_step_count=50)
    run_state_machine_as_test(Machine, settings=more)
    least = min(Watched.seen.values())
    assert len(Watched.seen) == 9, Watched.seen
    assert least >= 10, Watched.seen


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    """The shared engine's scheduler, whose sequences are returned."""
    Machine.shared.reset()
    scheduler = Scheduler(Machine.shared.serving())
    yield scheduler
    Machine.shared.text.set_held(scheduler.close())


def test_a_shared_prefix_is_evaluated_once(scheduler):
    """16 prompts with a common prefix, at once: the prefix is in one step, the rest is each one's,
    and so is the last token, after which each samples."""
    stem = letters(STEM)
    params = SamplingParams(max_tokens=1, temperature=0)
    requests = [Request(str(i), [*stem, LETTERS + 1 + i], params) for i in range(16)]
    for request in requests:
        scheduler.add(request)
    while scheduler.has_work:
        scheduler.step()
    assert scheduler.evaluated == len(stem) + 16
    assert [request.cached for request in requests] == [0] + [len(stem)] * 15


def test_the_oldest_run_is_never_preempted(scheduler):
    """Of two texts that do not both fit into the cache the first advances in every step, the second
    is preempted, and both are what they are alone."""
    params = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)
    first, second = (Request(name, letters(name * 12), params) for name in "ab")
    for request in (first, second):
        scheduler.add(request)
    steps = 0
    while not first.finished:
        scheduler.step()
        steps += 1
    assert steps <= 31
    assert not second.finished
    drawn = len(second.pieces)
    while scheduler.has_work:
        scheduler.step()
    assert 0 < drawn < 30
    for request in (first, second):
        Machine.lonely.reset()
        assert request.pieces == list(Machine.lonely.stream(request.prompt, params))


def test_priorities(scheduler):
    """Among waiting requests the smallest number is first; equals are in order of arrival."""
    params = SamplingParams(max_tokens=1, temperature=0)
    requests = [Request(str(i), letters("ab"), params, priority=-(i % 3)) for i in range(12)]
    for request in requests:
        scheduler.add(request)
    ended: list[int] = []
    while scheduler.has_work:
        ended += [int(request.id) for request, _ in scheduler.step()]
    assert ended == sorted(range(12), key=lambda i: (-(i % 3), i))


def test_cancelling_very_many_requests(scheduler):
    """It takes no more time than their arrival: each is found without a search."""
    requests = [Request("", letters("cat"), SamplingParams(), -(i % 3)) for i in range(20_000)]
    seconds = []
    for do in (scheduler.add, scheduler.cancel):
        begun = time.perf_counter()
        for request in requests:
            do(request)
        seconds.append(time.perf_counter() - begun)
    assert not scheduler.has_work
    assert all(request.finished for request in requests)
    assert seconds[1] < 1 + 50 * seconds[0]
    scheduler.add(last := Request("", letters("cat"), SamplingParams(max_tokens=1)))
    while scheduler.has_work:
        scheduler.step()
    assert last.pieces[-1].finish_reason == "length"


def shared() -> Engine:
    Machine.shared.reset()
    return Machine.shared


def alone(prompt, params: SamplingParams):
    """The result of a prompt on an engine of its own, or the error."""
    Machine.lonely.reset()
    try:
        Machine.lonely.stream(prompt, params)  # refuses what [], no prompts, does not
        return Machine.lonely.generate(prompt, params).outputs
    except EngineError as error:
        return str(error)


def test_batched_results_equal_each_alone():
    """Results are in the order of the prompts; one too long, or empty, fails alone."""
    params = [replace(ASKED[(i + 1) % len(ASKED)], n=1) for i in range(len(PROMPTS))]
    results = shared().generate(PROMPTS, params)
    assert [result.request_id for result in results] == [str(i) for i in range(len(PROMPTS))]
    for prompt, asked, result in zip(PROMPTS, params, results, strict=True):
        expected = alone(prompt, asked)
        assert (result.error or result.outputs) == expected
        assert (result.outputs[0].finish_reason == "error") == isinstance(expected, str)
    assert [result.error for result in results if result.error] == [
        "the logits processor failing_processor returned float32 [7]: want logits float32 [286]",
        "the prompt has 45 tokens, the context holds 44: shorten it or load with a larger context",
        "the prompt is empty",
    ]
    assert len({result.text for result in results}) > 8


def test_invalid_requests_are_refused():
    """Each is reported in one line before anything is evaluated."""
    engine = shared()
    with pytest.raises(EngineError, match=r"^there are 2 prompts, but 1 params$"):
        engine.generate(["a", "b"], [SamplingParams()])
    with pytest.raises(EngineError, match=r"^there are 2 prompts, but 3 priorities$"):
        engine.generate(["a", "b"], priorities=[1, 2, 3])
    for params in ([SamplingParams()], {"temperature": 0}):
        with pytest.raises(EngineError, match=r"^params of one prompt must be a Sampl"):
            engine.generate("a", params)
    with pytest.raises(EngineError, match=r"^params of prompt 1 must be a SamplingParams, got {}$"):
        engine.generate(["a", "b"], [SamplingParams(), {}])
    for prompt in (None, 5, b"abc", [1.5]):
        with pytest.raises(EngineError, match=r"^a prompt must be a text or token ids"):
            engine.stream(prompt)
    failed, whole = engine.generate([None, "a"], SamplingParams(max_tokens=2))
    assert failed.error == "a prompt must be a text or token ids, got None"
    assert whole.error is None
    assert engine.generate([]) == []


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.exhaustive)])
def test_very_many_prompts(count):
    """Few are requested in advance, and memory does not grow."""
    engine, asked = shared(), 0
    params = SamplingParams(max_tokens=1, temperature=0)

    def prompts() -> Iterator[list[int]]:
        nonlocal asked
        for i in range(count):
            asked += 1
            yield [*letters("cat"), LETTERS + i % 27]

    def requests() -> int:
        gc.collect()
        return sum(type(thing) is Request for thing in gc.get_objects())

    expected = [alone([*letters("cat"), LETTERS + i], params) for i in range(27)]
    most, before = (QUEUED_PER_SEQUENCE + 1) * 4, requests()  # most that wait or run
    for done, result in enumerate(engine.as_completed(prompts(), params)):
        assert result.outputs == expected[int(result.request_id) % 27]
        assert asked - done <= most + 4
        if done % 400 == 200:
            assert requests() - before <= most + 4
    assert done == count - 1


@pytest.mark.parametrize("after", [0, 1, 2, 4])
def test_cancelling_a_batch_of_prompts(after):
    """Another thread cancels after some results: the others end with what they have."""
    engine = shared()
    params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
    prompts = [letters(word) for word in ("a", "cat", "dog", "sat", "ran", "mat", "the", "on")]
    whole = {str(i): alone(prompt, params)[0].text for i, prompt in enumerate(prompts)}
    results = engine.as_completed(prompts, params)
    found = [next(results) for _ in range(after)]
    canceller = threading.Thread(target=engine.cancel)
    if after:
        canceller.start()
        canceller.join()
    found += list(results)
    assert sorted(result.request_id for result in found) == sorted(whole)
    assert all(whole[result.request_id].startswith(result.text.rstrip(HALF)) for result in found)
    reasons = Counter(result.outputs[0].finish_reason for result in found)
    assert reasons["length"] + reasons["cancelled"] == 8
    assert bool(reasons["cancelled"]) == bool(after)
    assert engine.generate(prompts[0], params).text == whole["0"]


def test_another_generation_ends_a_batch():
    """Requesting results after another generation has begun is one error line."""
    engine = shared()
    results = engine.as_completed(["cat", "dog", "a"] * 3, SamplingParams(max_tokens=2))
    next(results)
    engine.generate("mat")
    with pytest.raises(BusyError, match="another has begun on the same engine"):
        list(results)


@pytest.mark.parametrize("many", [True, False])
def test_closing_with_pending_results(spelling, many):
    """Another thread closes during steps: finished results are returned, others fail."""
    prompts, begun = [letters("cat")] * 1000, threading.Event()

    def watch(_: list[int], logits: Array) -> Array:
        begun.set()
        return logits

    params = SamplingParams(
        max_tokens=None, temperature=0, logit_bias=FORBIDDEN, logits_processors=[watch]
    )

    def ask(engine: Engine, found: list) -> None:
        try:
            found.extend(
                engine.generate(prompt, params) for prompt in ([prompts] if many else prompts)
            )
        except EngineError as error:
            found.append(error)

    for pause in (0.0, 0.003, 0.01):
        engine = Engine.load(spelling, threads=2, context=CONTEXT, sequences=4, batch=12)
        begun.clear()
        found: list = []
        asker = threading.Thread(target=ask, args=(engine, found))
        asker.start()
        assert begun.wait(60)
        threading.Event().wait(pause)
        engine.close()
        asker.join(60)
        assert not asker.is_alive()
        if many:
            (results,) = found
            assert len(results) == 1000
            errors = {result.error for result in results if result.error}
            assert results[-1].error
        else:
            *_, error = found
            assert isinstance(error, EngineError)
            errors = {str(error)}
        assert errors == {f"{spelling}: the model was closed"}
        with pytest.raises(EngineError, match=r"closed$"):
            engine.generate("cat")
