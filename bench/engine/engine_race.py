"""Engine tests run by several contenders in turns: our engine, and the available peers."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.child import ChildError
from bench.contenders.contender import CONTENDERS, FAST, OURS, Check, EngineTest, Setup
from bench.contenders.racer import Program, Racer, enter, named
from bench.race.experiment import Contender, Experiment
from bench.race.results import Measurement

PATIENCE = 3.0  # seconds of a peer's sample


@dataclass(slots=True)
class Field:
    """The contenders of one model, our engine first, and why others are absent."""

    model: Path
    setup: Setup
    racers: list[Racer | Program]
    absent: dict[str, str]
    last: Experiment = field(default_factory=lambda: Experiment({}))

    def experiment(self, *tests: EngineTest) -> Experiment:
        """Every racer at every test that it supports, named like `assay pp512`. A peer that died at
        another test is absent."""
        before = self.last.contenders.values()
        self.absent |= {one.row.contender: one.absent for one in before if one.absent}
        self.racers = [one for one in self.racers if one.name not in self.absent]
        pairs = [(test, racer) for test in tests for racer in self.racers if racer.does(test)]
        found = {f"{racer.name} {test.name}": self._contender(test, racer) for test, racer in pairs}
        for test in tests:
            for name, reason in self.absent.items():
                found[f"{name} {test.name}"] = Contender(self._row(test, name), absent=reason)
        self.last = Experiment(found)
        return self.last

    def _contender(self, test: EngineTest, racer: Racer | Program) -> Contender:
        row = replace(self._row(test, racer.name), settings=racer.settings)
        parts = {
            "prompt": replace(row, test=f"{test.name} prompt", tokens=test.prompt_tokens),
            "generation": replace(row, test=f"{test.name} generation", tokens=test.generate_tokens),
        }
        return Contender(
            row,
            lambda: racer.sample(test),
            parts if test.kind == "batched" else {},
            excused=() if racer.name == OURS else ChildError,
            patience=PATIENCE,
        )

    def _row(self, test: EngineTest, name: str) -> Measurement:
        return Measurement(
            bench="engine",
            test=test.name,
            contender=name,
            model=self.model.name,
            threads=self.setup.threads,
            tokens=test.tokens,
        )


def gaps(raced: Experiment) -> list[Measurement]:
    """How far the logits of fast numerics are from ours, after the same prompts."""
    rows = []
    for name, fast in raced.contenders.items():
        ours = raced.contenders.get(name.replace(FAST, OURS, 1))
        prompt = fast.row.test.startswith("pp") and not fast.parts
        if fast.row.contender == FAST and prompt and ours and fast.taken:
            pairs = zip(fast.taken, ours.taken, strict=False)
            checks = [(a.check, b.check) for a, b in pairs]
            apart = tuple(
                a.nmse(b) for a, b in checks if isinstance(a, Check) and isinstance(b, Check)
            )
            rows.append(replace(fast.row, bench="gap", unit="NMSE", samples=apart))
    return rows


@contextmanager
def field_of(
    model: Path, setup: Setup, contenders: Sequence[str] = tuple(CONTENDERS)
) -> Iterator[Field]:
    """Open the model in every contender's own process; all end together.

    Fast numerics of a model without fast kernels would be the same engine again: left out, and
    reported absent if requested by name.
    """
    ordered = [OURS, *(name for name in contenders if name != OURS)]
    with ExitStack() as stack:
        racers: list[Racer | Program] = []
        absent: dict[str, str] = {}
        for name in ordered:
            entered = enter(name, model, setup)
            if isinstance(entered, str):
                absent[named(name)[0]] = entered
            elif name == FAST and entered.about["kernels"] == racers[0].about["kernels"]:
                entered.close()
                if set(contenders) != set(CONTENDERS):
                    absent[FAST] = "no kernel of this model has a fast form"
            else:
                stack.callback(entered.close)
                racers.append(entered)
        yield Field(model, setup, racers, absent)
