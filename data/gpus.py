"""Published specifications of GPUs (gpus.toml), for predictions without one."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("gpus.toml")


@dataclass(frozen=True, slots=True)
class GpuModel:
    """`clock` in MHz, `bandwidth` in GB/s, tensor cores' `half` in TFLOP/s and `int8` in TOPS,
    `cache` in MiB; `latency`, `l2` and `l1`: idle load latencies of memory and caches in cycles."""

    name: str
    capability: int
    multiprocessors: int
    clock: float
    bandwidth: float
    half: float
    int8: float
    cache: float
    latency: float
    l2: float
    l1: float

    def seconds(self, cycles: float) -> float:
        return cycles / (self.clock * 1e6)


@cache
def gpus() -> dict[str, GpuModel]:
    """The GPUs by the names used in options, e.g. h200."""
    found = tomllib.loads(FILE.read_text())["gpus"]
    return {name: GpuModel(**figures) for name, figures in found.items()}
