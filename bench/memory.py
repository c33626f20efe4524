"""How much memory a process holds at most that loads a model and runs a prompt.

Run as a program it is the process that is looked at.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.child import Child, serve
from bench.contenders.contender import Setup

STATUS = Path("/proc/self/status")
PEAK = "VmHWM:"  # of what was resident, since the program's own start


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes resident at the peak, loading included, and those of the file and of the KV cache."""

    peak: int
    file: int
    cache: int


def held(model: Path, setup: Setup, prompt: int) -> Held:
    """Load the model in a new process and run a prompt of so many tokens and one step more."""
    with Child("bench.memory") as child:
        answer = child.ask({"model": str(model), "setup": asdict(setup), "prompt": prompt})
    return Held(**answer)


def peak(status: Path = STATUS) -> int:
    """Bytes of this process; OSError or ValueError where the system does not tell."""
    for line in status.read_text().splitlines():
        if line.startswith(PEAK):
            return int(line.split()[1]) * 1024
    raise ValueError(f"{status}: no {PEAK.rstrip(':')} in it")


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    from bench.contenders.assay import loaded

    setup, prompt = Setup(**question["setup"]), int(question["prompt"])
    path = Path(question["model"])
    with loaded(path, setup) as engine:
        model = engine.model
        tokens = np.random.default_rng(0).integers(model.config.vocab, size=prompt + 1).tolist()
        model.evaluate(tokens[:-1], 0)
        model.evaluate(tokens[-1:], prompt)
        cache = sum(part.nbytes for part in model.caches.values())
        return asdict(Held(peak(), path.stat().st_size, cache))


if __name__ == "__main__":
    serve(_answer)
