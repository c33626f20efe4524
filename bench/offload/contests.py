"""Which ways to run a model are set against each other."""

from collections.abc import Sequence

from bench.offload.race import Subject
from bench.offload.way import BEFORE, DISK, LLAMA_CPP, MEANWHILE, NO_WINDOW, Process, Way

SHARES = (0.2, 0.4, 0.6, 0.8, 1.0)  # of the weights' bytes, what a budget is
IN_A_ROW, SCATTERED = "disk, in a row", "disk, a neuron at a time"
NAIVE, OVERLAPPED, IN_MEMORY = "naive", "naive, overlapped", "in memory"
STREAMED, HYBRID = "streamed", "hybrid"
PREDICTOR, WINDOW, BUNDLE = "+ predictor", "+ window", "+ bundle"
OFF, ON = "off", "on"


def dense(subject: Subject, share: float) -> list[Way]:
    """Naive loading, weights that stream, and llama.cpp under the same limit of memory."""
    budget = int(share * subject.weights)
    limited = not subject.alone
    found = [*_naive(OFF), Way(STREAMED, Process(budget=budget, limited=limited, sparse=OFF))]
    if limited:
        found.append(Way(LLAMA_CPP, Process(LLAMA_CPP, budget, limited)))
    return [*found, _disk(OFF)]


def paper(subject: Subject, share: float, neuron: int) -> list[Way]:
    """The table of LLM in a flash (arXiv 2312.11514): each way has what the one before it has, and
    one thing more. `neuron`: bytes of a bundle."""
    budget = int(share * subject.weights)
    with_neurons = [
        Way(PREDICTOR, Process(budget=budget, sparse=ON, window=NO_WINDOW, bundles=False)),
        Way(WINDOW, Process(budget=budget, sparse=ON, bundles=False)),
        Way(BUNDLE, Process(budget=budget, sparse=ON)),
    ]
    hybrid = Way(HYBRID, Process(budget=budget, sparse=OFF))
    scattered = Way(SCATTERED, Process(DISK, sparse=ON, scattered=neuron))
    return [*_naive(OFF), hybrid, *with_neurons, _disk(OFF), scattered]


def curve(subject: Subject, shares: Sequence[float], sparse: str, neuron: int = 0) -> list[Way]:
    """Streaming at several budgets, with all in memory, and naive loading of all."""
    found = [
        Way(at(share), Process(budget=int(share * subject.weights), sparse=sparse))
        for share in shares
    ]
    found += [_naive(OFF)[0], Way(IN_MEMORY, Process(sparse=sparse)), _disk(sparse)]
    if neuron:
        found.append(Way(SCATTERED, Process(DISK, sparse=sparse, scattered=neuron)))
    return found


def at(share: float) -> str:
    """What a way at such a budget is called."""
    return f"{share:.0%} of the weights"


def _naive(sparse: str) -> list[Way]:
    """The whole model is in memory, and is read for each step; and it alone."""
    process = Process(sparse=sparse)
    return [
        Way(NAIVE, process, BEFORE),
        Way(OVERLAPPED, process, MEANWHILE),
        Way(IN_MEMORY, process),
    ]


def _disk(sparse: str) -> Way:
    return Way(IN_A_ROW, Process(DISK, sparse=sparse))
