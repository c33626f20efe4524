"""What a GPU's memory has to hold, counted before anything is loaded."""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.gpu.layout import MULTIPLE, Layout
from engine.gpu.weights import Weights, weights_in

SPARE = 2**26  # bytes for the kernels themselves, recorded steps and what finds tokens
LIBRARY = 2**28  # for cuBLAS, its kernels and what it works in


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of `weights`, of the `cache`, and of a `step`: activations, inputs and what runs it."""

    weights: int
    cache: int
    step: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.step

    def __str__(self) -> str:
        parts = {"weights": self.weights, "the cache": self.cache, "a step": self.step}
        listed = ", ".join(f"{gb(size)} for {what}" for what, size in parts.items())
        return f"{gb(self.total)} GB ({listed})"


def footprint(layout: Layout, weights: Weights) -> Footprint:
    """Of the steps that are laid out."""
    cache = [value.bytes(layout.limits) for value in layout.values("cache").values()]
    multiplies = any(step.kernel.multiplies for step in layout.steps())
    inputs = [value.bytes(layout.limits) for value in layout.values("input").values()]
    return Footprint(
        _sum(map(weights.bytes, weights_in(layout).values())),
        _sum(cache),
        layout.arena_bytes + _sum(inputs) + SPARE + multiplies * LIBRARY,
    )


def _sum(sizes: Iterable[int]) -> int:
    """Each from a multiple of bytes on."""
    return sum(-(-size // MULTIPLE) * MULTIPLE for size in sizes)


def gb(size: int) -> str:
    """Bytes in GB."""
    return f"{size / 1e9:.3g}"
