"""The ways in which a model that is larger than memory can be run, and what a run of one gives."""

import math
from dataclasses import dataclass

ASSAY, LLAMA_CPP, DISK = "assay", "llama.cpp", "disk"
NO_WINDOW = -1
BEFORE, MEANWHILE = "before", "meanwhile"  # the whole model is read, and a step is done


@dataclass(frozen=True, slots=True)
class Process:
    """What a process has open.

    - `who`: runs it; DISK computes nothing and reads `scattered` bytes at a time from anywhere or,
      if that is 0, many in a row.
    - `budget`: bytes of memory; 0: as many as it takes. `limited`: the system enforces it.
    - `sparse`, `window`, `bundles`: of our engine, as engine.options has them; with NO_WINDOW no
      neuron stays from one token to the next.
    """

    who: str = ASSAY
    budget: int = 0
    limited: bool = False
    sparse: str = "auto"
    window: int | None = None
    bundles: bool = True
    scattered: int = 0

    @property
    def layout(self) -> str:
        """Processes of one layout may share a file of packed weights."""
        return f"{self.sparse}-{'bundles' if self.bundles else 'rows'}"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to run a model: the process that does it, and whether the whole model is read before
    each step or meanwhile; "": what is missing is."""

    name: str
    process: Process
    naive: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """A token on average: seconds, bytes from disk, seconds in which any were on their way and in
    which the step waited for them, neurons found in memory and neurons read. Of a disk, the seconds
    and bytes of a reading."""

    seconds: float
    bytes: float
    busy: float = math.nan
    waited: float = math.nan
    hits: float = 0.0
    misses: float = 0.0


@dataclass(frozen=True, slots=True)
class About:
    """What a process has open: bytes of weights that stay in memory, that are read for every step,
    and of the pool of neurons; the share of neurons that stay there; bytes of one read of a neuron;
    the packed file; notes."""

    resident: int = 0
    streamed: int = 0
    pool: int = 0
    kept: float = 0.0
    neuron: int = 0
    packed: str = ""
    notes: tuple[str, ...] = ()
