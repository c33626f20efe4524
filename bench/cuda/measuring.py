"""Jobs measured on a GPU in a process of their own: one that hangs, or takes the context down with
an access to nowhere, costs only itself.

Run as a program (`python -m bench.cuda.measuring`) it is that process. {"probe": true} asks for the
ceilings, {"job", "models", "ceilings", "out"} for a job's rows.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.child import ChildError, Revived, serve
from bench.cuda.ceilings import Ceilings, probe
from bench.cuda.clock import Clock
from bench.cuda.jobs import Lab, failed, jobs
from bench.results import Measurement
from kernels.cuda.gpu import Gpu

LEAST, PATIENCE = 15.0, 60.0  # seconds for one of them
MODULE = "bench.cuda.measuring"


class Measuring:
    """The jobs of these models, by a child; kernels called so are left `out`."""

    def __init__(self, child: Revived, models: Mapping[str, Path], out: Iterable[str]) -> None:
        self._child, self._models, self._out = child, models, sorted(out)
        self.jobs = jobs(models)

    def probe(self, seconds: float) -> Ceilings:
        """ChildError where it cannot be done within so many seconds, or LEAST."""
        return Ceilings(**self._child.ask({"probe": True}, _patience(seconds)))

    def rows(self, number: int, ceilings: Ceilings, seconds: float) -> list[Measurement]:
        """Of the job of this number, within so many seconds, or LEAST; if there are none, a row
        that says why."""
        question = {
            "job": number,
            "models": {name: str(path) for name, path in self._models.items()},
            "ceilings": asdict(ceilings),
            "out": self._out,
        }
        try:
            found = self._child.ask(question, _patience(seconds))["rows"]
        except ChildError as error:
            self._child.end()  # the context may be lost
            return failed(self.jobs[number], str(error))
        return [Measurement.from_json(row) for row in found]


def _patience(left: float) -> float:
    return min(PATIENCE, max(LEAST, left))


@contextmanager
def measuring(models: Mapping[str, Path], out: Iterable[str] = ()) -> Iterator[Measuring]:
    with Revived(MODULE) as child:
        yield Measuring(child, models, out)


class Worker:
    """The child."""

    @cached_property
    def gpu(self) -> Gpu:
        return Gpu()

    @cached_property
    def clock(self) -> Clock:
        return Clock(self.gpu)

    def answer(self, question: dict[str, Any]) -> dict[str, Any]:
        if "probe" in question:
            return asdict(probe(self.gpu, self.clock))
        models = {name: Path(path) for name, path in question["models"].items()}
        ceilings, out = Ceilings(**question["ceilings"]), frozenset(question["out"])
        lab = Lab(self.gpu, self.clock, ceilings, out)
        rows = jobs(models)[question["job"]].run(lab)
        return {"rows": [asdict(row) for row in rows]}


if __name__ == "__main__":
    serve(Worker().answer)
