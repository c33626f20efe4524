"""A contender's process: opens a model and times requests, in the same way for every contender.

As in llama-bench: tokens are random, only the last one's logits are computed, nothing is sampled,
and every test has one uncounted warm-up run.
"""

import time
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np

from bench.child import settle
from bench.contenders.contender import CONTENDERS, Array, Check, Contender, EngineTest, Setup
from bench.race.experiment import Sample

REPEATED = 256  # tokens that are read, where the rest are copies


class Session:
    """One contender with one model. Between samples its cache holds at most the tokens before the
    last test. It waits until its threads are idle before it answers."""

    def __init__(self, name: str, model: Path, setup: Setup) -> None:
        home, _, kind = CONTENDERS[name].home.partition(":")
        self._setup = setup
        self._open: Callable[[], Contender] = lambda: getattr(import_module(home), kind)(
            model, setup
        )
        self._contender: Contender = self._open()
        self._warm: set[EngineTest] = set()  # tests that had their warm-up run
        self._proven = not self._contender.exact
        self._try()

    def _try(self) -> None:
        """Run a short prompt and a step, so that an engine which crashes does so before any
        timing."""
        test = EngineTest("tg", generate=1, depth=min(32, self._setup.context - 1))
        self._run(test, token_ids(test, 0, self._contender.vocab))
        self._contender.hold(1, 0)

    def opened(self) -> dict[str, str]:
        """The contender's description of itself."""
        settle()
        return dict(self._contender.about)

    def sample(self, test: EngineTest, number: int) -> Sample:
        """Time it once, and wait until idle. The same test and number give every contender the same
        tokens."""
        if test.context > self._setup.context or test.parallel > self._setup.sequences:
            raise ValueError(
                f"{test.name} wants a context of {test.context} and {test.parallel} sequences,"
                f" the setup has {self._setup.context} and {self._setup.sequences}"
            )
        tokens = token_ids(test, number, self._contender.vocab)
        if test not in self._warm and test.kind != "load":
            self._run(test, tokens[:, : test.prompt + 1])
            self._warm.add(test)
        found = self._load() if test.kind == "load" else self._run(test, tokens)
        settle()
        return found

    def filled(self, depth: int) -> int:
        """Fill the cache to so many tokens before a test, where this contender can repeat what it
        has; returns how many it holds."""
        few = min(REPEATED, depth)
        self._fill(EngineTest("tg", generate=1, depth=few))
        repeat = getattr(self._contender, "repeat", None)
        if repeat and few < depth:
            repeat(depth)
        settle()
        return depth if repeat else few

    def _load(self) -> Sample:
        self._contender.close()
        started = time.perf_counter()
        self._contender = self._open()
        seconds = time.perf_counter() - started
        self._warm.clear()
        self._try()
        return Sample(seconds)

    def _run(self, test: EngineTest, tokens: Array) -> Sample:
        """Prompt, then steps: tokens [parallel, prompt + steps]."""
        contender = self._contender
        self._fill(test)
        if test.kind == "first_token":
            started = time.perf_counter()
            drawn = contender.first_token(tokens[0, : test.prompt].tolist())
            seconds = time.perf_counter() - started
            contender.hold(1, 0)
            return Sample(seconds, check=Check(drawn, ()))
        logits = np.empty((0, contender.vocab), np.float32)
        started = time.perf_counter()
        if test.prompt:
            logits = contender.evaluate(tokens[:, : test.prompt], test.depth)
        prompted = time.perf_counter()
        for i in range(test.prompt, tokens.shape[1]):
            logits = contender.evaluate(tokens[:, i : i + 1], test.depth + i)
        ended = time.perf_counter()
        check = Check.of(logits[-1])
        if test.kind == "pp" and not self._proven:
            self._prove(test, tokens, logits[-1].copy())
        contender.hold(test.parallel, test.depth)
        parts = {"prompt": prompted - started, "generation": ended - prompted}
        return Sample(ended - started, parts, check)

    def _fill(self, test: EngineTest) -> None:
        """Make the cache hold exactly the tokens before the test's own: always the same ones, so
        that a deeper test only appends."""
        held = self._contender.hold(test.parallel, test.depth)
        if held < test.depth:
            filling = np.random.default_rng(0).integers(
                0, self._contender.vocab, self._setup.context, np.int32
            )
            self._contender.evaluate(filling[None, held : test.depth], held)

    def _prove(self, test: EngineTest, tokens: Array, logits: Array) -> None:
        """Check that the same prompt split elsewhere gives the same logits, bit for bit."""
        cut = test.prompt // 3
        if not cut:
            return
        self._contender.hold(test.parallel, test.depth)
        self._contender.evaluate(tokens[:, :cut], test.depth)
        again = self._contender.evaluate(tokens[:, cut:], test.depth + cut)[-1]
        if not np.array_equal(again, logits):
            raise ArithmeticError(
                f"{test.name}: logits differ by {np.abs(again - logits).max():g} when the prompt is"
                f" cut after {cut} tokens"
            )
        self._proven = True

    def close(self) -> None:
        self._contender.close()


def token_ids(test: EngineTest, number: int, vocab: int) -> Array:
    """Random tokens int32 [parallel, prompt + generate] of the test's sample with this number."""
    rng = np.random.default_rng([zlib.crc32(test.name.encode()), number])
    return rng.integers(0, vocab, (test.parallel, test.prompt + test.generate), np.int32)
