"""How much memory a process holds at most that loads a model and runs a prompt."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.child import Child
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
    with Child("bench.machine.memory:held_here") as child:
        found: Held = child.ask(model=model, setup=setup, prompt=prompt)
        return found


def peak(status: Path = STATUS) -> int:
    """Bytes of this process; OSError or ValueError where the system does not tell."""
    for line in status.read_text().splitlines():
        if line.startswith(PEAK):
            return int(line.split()[1]) * 1024
    raise ValueError(f"{status}: no {PEAK.rstrip(':')} in it")


def held_here(model: Path, setup: Setup, prompt: int) -> Held:
    """What the child does."""
    from bench.contenders.assay import loaded

    with loaded(model, setup) as engine:
        own = engine.model
        tokens = np.random.default_rng(0).integers(own.config.vocab, size=prompt + 1).tolist()
        own.evaluate(tokens[:-1], 0)
        own.evaluate(tokens[-1:], prompt)
        cache = sum(part.nbytes for part in own.caches.values())
        return Held(peak(), model.stat().st_size, cache)
