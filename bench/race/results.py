"""Results: one file of JSON lines a run, only ever appended to.

The first line says under what conditions the run measured and what the machine can do; each
further line is one measurement with all its samples. `bench.race.frames` makes pandas
frames of them.
"""

import errno
import json
import math
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, get_origin

import numpy as np

from bench.machine.conditions import Conditions
from bench.race.ratio import relative_error


class ResultsError(ValueError):
    """A results file or folder that cannot be used."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """What was measured and every sample of it, in seconds unless `unit` says otherwise.

    - `bench`: "op", "engine", "start" or "node"; of the speed card (bench/figures.py) "stream",
      "scaling", "memory", "gap" or "empty step"; "quality" (bench/quality.py), "sparsity"
      (bench/sparsity.py), "offload" (bench/offload_speed.py), "speculation"
      (bench/speculation_speed.py), "serving" (bench/serving_speed.py) and "gpu"
      (bench/gpu_check.py). `test`: the op's name, or e.g. "pp512".
    - `phase`: "run", or one of "compile", "certify", "pack", "load"; of a node's step "prompt".
    - `cache`: "hot", "cold" (buffers beyond the last-level cache) or "" where it does not apply.
    - `tokens`: how many a sample of an engine's test gets through; 0 for ops.
    - `settings`: what it ran with that is not the same for everyone, e.g.
      "kv_format=Q8_0,sparse=auto,blocks=2/6,threshold=1".
    - `bytes`, `operations`: what must move and be done at least; `limit` names the binding limit
      of the machine and `limit_seconds` what it allows at best.
    - `checked`: how many samples had their outputs checked, those that warmed up among them.
    - `rivals`: a word that measurements share if they took turns in one race.
    - `note`: why it is doubtful, rejected or absent; a measurement without samples is absent.
    - `unit`: of the samples: "s", "B" for bytes of memory, "NMSE" for how far logits are apart;
      of quality and sparsity "bits", "perplexity", "nats" or "share"; of speculation "tokens" that
      a step gives, and "share".
    """

    bench: str
    test: str
    contender: str = "assay"
    target: str = ""
    variant: str = ""
    format: str = ""
    shape: str = ""
    model: str = ""
    threads: int = 0
    cache: str = ""
    phase: str = "run"
    settings: str = ""
    samples: tuple[float, ...] = ()
    tokens: int = 0
    bytes: float = 0.0
    operations: float = 0.0
    limit: str = ""
    limit_seconds: float = 0.0
    limit_spread: float = 0.0
    kernel: str = ""  # digest of the kernel's certificate key
    checked: int = 0
    rivals: str = ""
    note: str = ""
    unit: str = "s"

    @property
    def median(self) -> float:
        return float(np.median(self.samples)) if self.samples else float("nan")

    @property
    def error(self) -> float:
        """Relative standard error of the median."""
        return relative_error(self.samples)

    @property
    def share(self) -> float:
        """Share of the binding limit; 0 where no limit is known."""
        if not self.samples or not self.limit_seconds:
            return 0.0
        return self.limit_seconds / self.median if self.median else math.inf

    @property
    def gb_per_second(self) -> float:
        return self.bytes / self.median / 1e9

    @property
    def gflop_per_second(self) -> float:
        return self.operations / self.median / 1e9

    @property
    def reached(self) -> float:
        """The share as pages show it: an excess within the probe's spread counts as 100%."""
        return self.share if self.impossible else min(1.0, self.share)

    @property
    def impossible(self) -> str:
        """Why no machine can have been so fast, or "": then cost or clock is wrong."""
        if self.share > 1 + self.limit_spread:
            return f"{self.share:.0%} of the limit ({self.limit}): its cost or the clock is wrong"
        return ""

    @property
    def key(self) -> tuple[Any, ...]:
        """The fields that make it comparable with another run's measurement."""
        return (
            self.bench, self.test, self.contender, self.target, self.variant, self.format,
            self.shape, self.model if self.bench != "op" else "", self.threads, self.cache,
            self.phase, self.settings,
        )  # fmt: skip

    @property
    def kernel_name(self) -> str:
        """E.g. linear/cpu/generic/Q4_0."""
        return "/".join(filter(None, (self.test, self.target, self.variant, self.format)))

    @property
    def title(self) -> str:
        """A line for display: linear/cpu/generic/Q4_0 tokens=1,… cold; for rows of the speed card
        pp512 model.gguf scaling threads=2."""
        where = self.shape or self.model
        phase = "" if self.phase == "run" else self.phase
        who = "" if self.contender == "assay" else f"({self.contender})"
        words = [self.kernel_name, where, self.settings, self.cache, phase, who]
        if self.bench not in ("op", "engine", "node", "gpu"):
            words += [self.model if self.shape else "", self.bench, f"threads={self.threads}"]
        return " ".join(filter(None, words))

    def to_json(self) -> dict[str, Any]:
        return {"kind": "measurement", **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Measurement":
        """A measurement from its fields; KeyError, ValueError or TypeError for invalid ones."""
        samples = data["samples"]
        if not isinstance(samples, list) or not all(_finite(s) and s >= 0 for s in samples):
            raise ValueError("samples are finite and not negative")
        return checked(cls(**{**data, "samples": tuple(map(float, samples))}))


@dataclass(frozen=True, slots=True)
class Limit:
    """The `seconds` that no correct kernel can beat except within `spread`, and the binding limit:
    "memory read" or "int8"."""

    name: str
    seconds: float
    spread: float

    def of(self, row: Measurement) -> Measurement:
        """The row with this limit."""
        return replace(row, limit=self.name, limit_seconds=self.seconds, limit_spread=self.spread)


@dataclass(frozen=True, slots=True)
class Run:
    """One run's conditions and measurements. `limits` is the probe's result, as JSON."""

    run: str
    when: str
    conditions: Conditions
    limits: Mapping[str, Any] = field(default_factory=dict)
    measurements: tuple[Measurement, ...] = ()
    path: Path = Path()


def results_folder() -> Path:
    """The folder of runs; ASSAY_RESULTS overrides it."""
    if chosen := os.environ.get("ASSAY_RESULTS"):
        return Path(chosen)
    import platformdirs  # a bare machine whose GPU is checked may have none

    return platformdirs.user_data_path("assay", appauthor=False) / "results"


class Results:
    """A run being written; every measurement is on disk as soon as it is made."""

    def __init__(
        self, folder: Path, conditions: Conditions, limits: Mapping[str, Any] | None = None
    ) -> None:
        now = datetime.now(UTC)
        stamp = now.strftime("%Y%m%dT%H%M%SZ")
        self.run = f"{stamp}-{conditions.commit[:7] or 'nogit'}-{secrets.token_hex(2)}"
        self.path = folder / f"{self.run}.jsonl"
        folder.mkdir(parents=True, exist_ok=True)
        self._append(
            {
                "kind": "run",
                "run": self.run,
                "when": now.isoformat(timespec="seconds"),
                "conditions": conditions.to_json(),
                "limits": dict(limits or {}),
            }
        )

    def add(self, *measurements: Measurement) -> None:
        for measurement in measurements:
            self._append(measurement.to_json())

    def raise_limits(self, found: Mapping[str, Any]) -> None:
        """Replace the machine's limits by those found since the run began."""
        self._append({"kind": "limits", "limits": dict(found)})

    def _append(self, line: Mapping[str, Any]) -> None:
        append_line(self.path, line)


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append a line in one write, so that the file's contents are whole whenever the run is cut
    off; a line truncated by a full disk is removed."""
    data = (json.dumps(line) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        written = os.write(descriptor, data)
        if written != len(data):
            os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        os.close(descriptor)


def read(path: Path) -> Run:
    """A run's file; ResultsError names the first invalid line."""
    run: Run | None = None
    measurements = []
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError as error:
        raise ResultsError(f"{path}: byte {error.start} is not valid UTF-8") from None
    for number, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
            kind = data.pop("kind")
            if kind == "run" and run is None:
                known = checked(Conditions.from_json(data["conditions"]))
                run = checked(Run(data["run"], data["when"], known, data["limits"], (), path))
                if datetime.fromisoformat(run.when).tzinfo is None:
                    raise ValueError(f"{run.when} has no time zone")
            elif kind == "limits" and run is not None:
                run = checked(replace(run, limits=data["limits"]))
            elif kind == "measurement" and run is not None:
                measurements.append(Measurement.from_json(data))
            else:
                raise ValueError(f"a {kind!r} has no place here")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            reason = " ".join(str(error).split())[:120]
            raise ResultsError(f"{path}: line {number} is no result: {reason}") from None
    if run is None:
        raise ResultsError(f"{path}: no results in it")
    return replace(run, measurements=tuple(measurements))


T = TypeVar("T")


def checked(record: T) -> T:
    """The measurement itself, if its fields have their declared types and numbers are finite."""
    for known in fields(record):  # type: ignore[arg-type]
        value = getattr(record, known.name)
        kind: Any = get_origin(known.type) or known.type
        if not (_finite(value) if kind is float else isinstance(value, kind)):
            raise TypeError(f"{known.name} is a {kind.__name__}, got {value!r}")
    return record


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def read_folder(folder: Path) -> tuple[list[Run], list[str]]:
    """All its runs by date, and a line for each file that could not be read."""
    if not folder.is_dir():
        raise ResultsError(f"{folder}: no such folder; `pytest bench/ --benchmark` fills it")
    runs, complaints = [], []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            runs.append(read(path))
        except ResultsError as error:
            complaints.append(str(error))
        except OSError as error:
            complaints.append(f"{path}: {error.strerror}")
    if not runs:
        reason = f": {complaints[0]}" if complaints else "; `pytest bench/ --benchmark` fills it"
        raise ResultsError(f"{folder}: no results in it{reason}")
    return sorted(runs, key=lambda run: run.when), complaints


def is_stored(name: str, folder: Path) -> bool:
    """Whether `find` would search for a run of this name."""
    return name == "latest" or Path(name).is_file() or bool(_beginning(name, folder))


def find(name: str, folder: Path) -> Run:
    """A run by its file, its name in the folder, the beginning of its name, or `latest`: the last
    with any measurement."""
    if Path(name).is_file():
        return read(Path(name))
    if name == "latest":
        runs, _ = read_folder(folder)
        return next((run for run in reversed(runs) if run.measurements), runs[-1])
    matches = _beginning(name, folder)
    if len(matches) != 1:
        problem = f"{len(matches)} runs begin so" if matches else "no such run"
        raise ResultsError(f"{name}: {problem} in {folder}")
    return read(matches[0])


def _beginning(name: str, folder: Path) -> list[Path]:
    """The folder's files whose names begin so."""
    if not name or not folder.is_dir():
        return []
    return sorted(path for path in folder.glob("*.jsonl") if path.name.startswith(name))


def of_kind(measurements: Iterable[Measurement], **wanted: Any) -> list[Measurement]:
    """Those whose fields have these values."""
    return [m for m in measurements if all(getattr(m, n) == v for n, v in wanted.items())]
