"""An engine's tests run by several contenders in turns: our engine, and the peers that are here."""

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.child import ChildError
from bench.contenders.contender import CONTENDERS, FAST, OURS, Absent, Sample, Setup
from bench.contenders.program import Program
from bench.contenders.racer import Racer, enter
from bench.engine_tests import EngineTest
from bench.results import Measurement
from bench.timing import Rule, Sampler, race

PATIENCE = 3.0  # seconds of a peer's sample beyond which,
SLOW = 3  # if it is so many times ours,
FEW = 2  # samples must do
PARTS = {"prompt": "prompt_seconds", "generation": "generate_seconds"}  # of a batched test


@dataclass(slots=True)
class Field:
    """Those who take part with one model, and those who are absent; our engine is the first."""

    model: Path
    setup: Setup
    racers: list[Racer | Program]
    absent: list[Absent]
    last: dict[tuple[str, EngineTest], list[Sample]] = field(default_factory=dict)

    def samplers(self, *tests: EngineTest) -> dict[str, Sampler]:
        """A sampler for each racer at each test, which also keeps the whole samples in `last`.

        A peer that dies on the way is absent from then on; one that takes far longer than ours
        sits out once it has a few samples. Both then give NaN.
        """
        pairs = [(racer, test) for test in tests for racer in self.racers if _does(racer, test)]
        self.last = {(racer.name, test): [] for racer, test in pairs}

        def sampler(racer: Racer | Program, test: EngineTest) -> Sampler:
            def sample() -> float:
                before = self.last.get((racer.name, test))
                if before is None or (len(before) >= FEW and self._is_slow(test, before[-1])):
                    return math.nan
                try:
                    taken = racer.sample(test)
                except ChildError as error:
                    if racer.name == OURS:
                        raise
                    self._lose(racer, str(error))
                    return math.nan
                before.append(taken)
                return taken.seconds

            return sample

        return {f"{racer.name} {test.name}": sampler(racer, test) for racer, test in pairs}

    def _is_slow(self, test: EngineTest, sample: Sample) -> bool:
        ours = self.last[OURS, test]
        return bool(ours) and sample.seconds > max(PATIENCE, SLOW * ours[-1].seconds)

    def _lose(self, racer: Racer | Program, reason: str) -> None:
        self.racers.remove(racer)
        self.absent.append(Absent(racer.name, reason))
        self.last = {key: taken for key, taken in self.last.items() if key[0] != racer.name}

    def run(
        self, test: EngineTest, rule: Rule, watch: Callable[[int], None] | None = None
    ) -> list[Measurement]:
        """The test by all, in turns."""
        race(self.samplers(test), rule, watch)
        return self.measurements()

    def measurements(self) -> list[Measurement]:
        """Rows of the samples in `last`, and one without samples for each who is absent."""
        rivals = secrets.token_hex(4)
        rows = []
        for (name, test), taken in self.last.items():
            rows.append(self._row(test, name, [s.seconds for s in taken], test.tokens, rivals))
            if test.kind == "batched":
                tokens = {"prompt": test.prompt_tokens, "generation": test.generate_tokens}
                for part, attribute in PARTS.items():
                    seconds = [getattr(s, attribute) for s in taken]
                    rows.append(self._row(test, name, seconds, tokens[part], rivals, part))
        tests = dict.fromkeys(test for _, test in self.last)
        absent = (
            self._row(test, w.name, [], 0, rivals, note=w.reason)
            for test in tests
            for w in self.absent
        )
        return [*rows, *absent]

    def gaps(self) -> list[Measurement]:
        """How far the logits of fast numerics are from ours, after the same prompts."""
        rows = []
        for (name, test), taken in self.last.items():
            pairs = zip(taken, self.last[OURS, test], strict=False)
            checks = [(fast.check, ours.check) for fast, ours in pairs if name == FAST]
            if test.kind == "pp" and checks:
                apart = [fast.nmse(ours) for fast, ours in checks if fast and ours]
                row = self._row(test, name, apart, test.tokens, "")
                rows.append(replace(row, bench="gap", unit="NMSE"))
        return rows

    def _row(
        self,
        test: EngineTest,
        name: str,
        seconds: Sequence[float],
        tokens: int,
        rivals: str,
        part: str = "",
        note: str = "",
    ) -> Measurement:
        return Measurement(
            bench="engine",
            test=f"{test.name} {part}".strip(),
            contender=name,
            model=self.model.name,
            threads=self.setup.threads,
            samples=tuple(seconds),
            tokens=tokens,
            settings=next((r.settings for r in self.racers if r.name == name), ""),
            checked=len(seconds),
            rivals=rivals,
            note=note,
        )

    def about(self) -> Mapping[str, Mapping[str, str]]:
        """What each says of its versions and of how it runs the model."""
        return {racer.name: racer.about for racer in self.racers}


def _does(racer: Racer | Program, test: EngineTest) -> bool:
    return not isinstance(racer, Program) or racer.does(test)


@contextmanager
def field_of(
    model: Path, setup: Setup, contenders: Sequence[str] = tuple(CONTENDERS)
) -> Iterator[Field]:
    """Open the model in every contender's own process; all end together.

    Fast numerics of a model without fast kernels are the same engine once more: left out, and
    absent where they were asked for by name instead of among all.
    """
    ordered = [OURS, *(name for name in contenders if name != OURS)]
    with ExitStack() as stack:
        racers: list[Racer | Program] = []
        absent: list[Absent] = []
        for name in ordered:
            entered = enter(name, model, setup)
            if isinstance(entered, Absent):
                absent.append(entered)
            elif name == FAST and entered.about["kernels"] == racers[0].about["kernels"]:
                entered.close()
                if set(contenders) != set(CONTENDERS):
                    absent.append(Absent(FAST, "no kernel of this model has a fast form"))
            else:
                stack.callback(entered.close)
                racers.append(entered)
        yield Field(model, setup, racers, absent)


class Fields:
    """One field at a time, kept open for as long as the same one is asked for."""

    def __init__(self, contenders: Sequence[str]) -> None:
        self._contenders = contenders
        self._stack = ExitStack()
        self._open: Field | None = None

    def of(self, model: Path, setup: Setup) -> Field:
        if self._open is None or (self._open.model, self._open.setup) != (model, setup):
            self._stack.close()
            self._open = None  # whatever happens to the next one
            self._open = self._stack.enter_context(field_of(model, setup, self._contenders))
        return self._open

    def __enter__(self) -> "Fields":
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()
