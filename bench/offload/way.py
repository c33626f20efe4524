"""The ways to run a model larger than memory, and which are compared with each other."""

from collections.abc import Sequence
from dataclasses import dataclass

ASSAY, LLAMA_CPP, DISK = "assay", "llama.cpp", "disk"
NO_WINDOW = -1
BEFORE, MEANWHILE = "before", "meanwhile"  # the whole model is read, and a step is run

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)  # budgets as shares of the weights' bytes
IN_A_ROW, SCATTERED = "disk, in a row", "disk, a neuron at a time"
NAIVE, OVERLAPPED, IN_MEMORY = "naive", "naive, overlapped", "in memory"
STREAMED, HYBRID = "streamed", "hybrid"
PREDICTOR, WINDOW, BUNDLE = "+ predictor", "+ window", "+ bundle"
OF_THE_WEIGHTS = "% of the weights"
OFF, ON = "off", "on"
CURVE = "curve"  # prefix of the kind of a race over budgets


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
    """A way to run a model: its process, and whether the whole model is read before each step, or
    meanwhile; "": only what is missing is read."""

    name: str
    process: Process
    naive: str = ""


@dataclass(frozen=True, slots=True)
class About:
    """What a process has open: bytes of resident weights, of those read in every step, and of the
    pool of neurons; the share of neurons that fits; bytes of one neuron's read; the packed file;
    notes."""

    resident: int = 0
    streamed: int = 0
    pool: int = 0
    kept: float = 0.0
    neuron: int = 0
    packed: str = ""
    notes: tuple[str, ...] = ()


def dense(weights: int, share: float, limited: bool) -> list[Way]:
    """Ways for a model of so many bytes: naive loading, weights that stream under a budget, and
    llama.cpp under the same memory limit, where one can be set."""
    budget = int(share * weights)
    found = [*_naive(), Way(STREAMED, Process(budget=budget, limited=limited, sparse=OFF))]
    if limited:
        found.append(Way(LLAMA_CPP, Process(LLAMA_CPP, budget, limited)))
    return [*found, _disk(OFF)]


def paper(weights: int, share: float, neuron: int) -> list[Way]:
    """The table of LLM in a flash (arXiv 2312.11514): each way adds one technique to the one
    before. `neuron`: bytes of a bundle."""
    budget = int(share * weights)
    with_neurons = [
        Way(PREDICTOR, Process(budget=budget, sparse=ON, window=NO_WINDOW, bundles=False)),
        Way(WINDOW, Process(budget=budget, sparse=ON, bundles=False)),
        Way(BUNDLE, Process(budget=budget, sparse=ON)),
    ]
    hybrid = Way(HYBRID, Process(budget=budget, sparse=OFF))
    scattered = Way(SCATTERED, Process(DISK, sparse=ON, scattered=neuron))
    return [*_naive(), hybrid, *with_neurons, _disk(OFF), scattered]


def curve(weights: int, shares: Sequence[float], sparse: str, neuron: int = 0) -> list[Way]:
    """Streaming at several budgets, with all in memory, and naive loading of all."""
    found = [Way(at(s), Process(budget=int(s * weights), sparse=sparse)) for s in shares]
    found += [_naive()[0], Way(IN_MEMORY, Process(sparse=sparse)), _disk(sparse)]
    if neuron:
        found.append(Way(SCATTERED, Process(DISK, sparse=sparse, scattered=neuron)))
    return found


def at(share: float) -> str:
    """The name of a way at this budget."""
    return f"{100 * share:.0f}{OF_THE_WEIGHTS}"


def _naive() -> list[Way]:
    """The whole model is in memory, and is read for each step, nothing else."""
    process = Process(sparse=OFF)
    return [
        Way(NAIVE, process, BEFORE), Way(OVERLAPPED, process, MEANWHILE), Way(IN_MEMORY, process)
    ]  # fmt: skip


def _disk(sparse: str) -> Way:
    return Way(IN_A_ROW, Process(DISK, sparse=sparse))
