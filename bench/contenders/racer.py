"""The parent's side of a contender: it asks for samples, one at a time, and waits."""

from collections import Counter
from dataclasses import asdict
from pathlib import Path

from bench.child import Child, ChildError
from bench.contenders.contender import CONTENDERS, FAST, OURS, Check, Setup, present
from bench.contenders.program import Program, named
from bench.engine_tests import EngineTest
from bench.experiment import Sample


class Racer:
    """One contender with one model in a process of its own; between samples it uses no CPU.

    `about` says which versions run, and how.
    """

    def __init__(self, name: str, model: Path, setup: Setup) -> None:
        if reason := present(name):
            raise ChildError(reason)
        self.name, self.model, self.setup = name, model, setup
        environment = CONTENDERS[name].environment
        home, opened = "bench.contenders.session:Session", asdict(setup)
        self._child = Child(home, name, str(model), opened, env=environment)
        self._sampled: Counter[EngineTest] = Counter()
        try:
            self.about = self._child.ask("opened")
        except BaseException:
            self._child.close()
            raise

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def settings(self) -> str:
        """What sets its measurements apart from those of another set-up."""
        return ",".join(filter(None, (self.setup.settings, self.about.get("sparse"))))

    def does(self, test: EngineTest) -> bool:  # noqa: ARG002 - as a program is asked
        """Whatever the set-up has room for."""
        return True

    def sample(self, test: EngineTest, number: int = 0) -> Sample:
        """Time the test once, on the random tokens of that number: racers given the same one have
        the same tokens. 0: how many samples of this test it has been asked for, so that every
        sample has fresh ones."""
        self._sampled[test] += 1
        number = number or self._sampled[test]
        answer = self._child.ask("sampled", test=asdict(test), number=number)
        check = answer.pop("check")
        if check:
            check = Check(check["argmax"], tuple(check["values"]))
        return Sample(**answer, check=check)

    def close(self) -> None:
        self._child.close()

    def __enter__(self) -> "Racer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def enter(name: str, model: Path, setup: Setup) -> Racer | Program | str:
    """A racer; a program that times itself, for NAME=PROGRAM; or in one line why this peer cannot
    take part: not installed, keeps to no budget of memory, does not take the file, crashed.

    Our own engine is never absent: what it cannot open is an error.
    """
    name, path = named(name)
    if setup.ram_budget and name not in (OURS, FAST):
        return "it keeps to no ram_budget; bench.offload_speed limits its memory"
    try:
        if path:
            return Program(name, path, model, setup)
        return Racer(name, model, setup)
    except ChildError as error:
        if name == OURS:
            raise
        return str(error)
