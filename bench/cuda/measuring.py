"""Jobs measured on a GPU in a process of their own: one that hangs, or takes the context down with
an access to nowhere, costs only itself."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.child import ChildError, Revived
from bench.cuda.ceilings import Ceilings, probe
from bench.cuda.clock import Clock
from bench.cuda.jobs import PATIENCE, Lab, jobs
from bench.experiment import first_line
from bench.results import Measurement
from kernels.cuda.device import DeviceError
from kernels.cuda.gpu import Gpu

LEAST = 15.0  # seconds that whatever is begun may take
HOME = "bench.cuda.measuring:Worker"


class Measuring:
    """The jobs of these models, by a child; kernels called so are left `out`."""

    def __init__(self, child: Revived, models: Mapping[str, Path], out: Iterable[str]) -> None:
        self._child, self._models, self._out = child, models, sorted(out)
        self.jobs = jobs(models)

    def probe(self, seconds: float) -> Ceilings:
        """Within so many seconds, LEAST or PATIENCE; once more if that fails, then ChildError."""
        try:
            return Ceilings(**self._ask("probe", PATIENCE, seconds))
        except ChildError:
            self._child.end()
            return Ceilings(**self._ask("probe", PATIENCE, seconds))

    def rows(self, number: int, ceilings: Ceilings, seconds: float) -> list[Measurement]:
        """Of the job of this number, within its patience and so many seconds, or LEAST; a row that
        says why if there are none."""
        job = self.jobs[number]
        models = {name: str(path) for name, path in self._models.items()}
        asked = {"models": models, "ceilings": ceilings.to_json(), "out": self._out}
        try:
            found = self._ask("measure", job.patience, seconds, number=number, **asked)
            if found["lost"]:
                self._child.end()
            return [Measurement.from_json(row) for row in found["rows"]]
        except ChildError as error:
            self._child.end()  # the context may be lost
            return job.failed(error.reason)
        except (ValueError, TypeError, KeyError) as error:
            return job.failed(first_line(error))

    def _ask(self, method: str, patience: float, left: float, **arguments: Any) -> Any:
        return self._child.ask(min(patience, max(LEAST, left)), method, **arguments)


@contextmanager
def measuring(models: Mapping[str, Path], out: Iterable[str]) -> Iterator[Measuring]:
    with Revived(HOME) as child:
        yield Measuring(child, models, out)


class Worker:
    """The child."""

    @cached_property
    def gpu(self) -> Gpu:
        return Gpu()

    @cached_property
    def clock(self) -> Clock:
        return Clock(self.gpu)

    def probe(self) -> dict[str, Any]:
        """The ceilings."""
        return probe(self.gpu, self.clock).to_json()

    def measure(
        self, number: int, models: dict[str, str], ceilings: dict[str, Any], out: list[str]
    ) -> dict[str, Any]:
        """A job's rows, and whether the GPU is lost to it."""
        lab = Lab(self.gpu, self.clock, Ceilings(**ceilings), frozenset(out))
        job = jobs({name: Path(path) for name, path in models.items()})[number]
        return {"rows": [asdict(row) for row in job.run(lab)], "lost": self._lost()}

    def _lost(self) -> bool:
        """Whether one of those who failed has left a context that nobody can use."""
        try:
            self.gpu.wait()
        except DeviceError:
            return True
        return False
