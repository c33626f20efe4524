"""Places neurons within a budget, and keeps the result in the index beside the model."""

import hashlib
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.atomic_write import OutputError
from engine.file_errors import shown_path
from engine.gguf.file import GGUFError, GGUFFile
from engine.placement import gpu_index
from engine.placement.budget import PlacementError, parts, room
from engine.placement.gpu_index import GpuIndex, GpuIndexError, path_of
from engine.placement.solver import GROUP, grouped, solve
from engine.placement.statistics import Activations, identity

Ints = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class Speeds:
    """What decides whether a neuron is worth its place; the defaults are assumptions, of a
    desktop with two channels of DDR5 and a GPU such as an RTX 4090.

    cpu, gpu           bytes a second at which each reads weights
    synchronisation    seconds a token that a layer costs whose neurons are on both sides: the
                       input goes over, two launches, the partial sum comes back
    """

    cpu: float = 50e9
    gpu: float = 1e12
    synchronisation: float = 30e-6

    def __post_init__(self) -> None:
        if not (0 < self.cpu < self.gpu < math.inf and 0 <= self.synchronisation < math.inf):
            raise PlacementError(
                "a GPU has to read faster than the CPU, and to synchronise takes 0 or more seconds,"
                f" not {self.gpu:g} and {self.cpu:g} bytes/s and {self.synchronisation:g} s"
            )

    @property
    def saved(self) -> float:
        """Seconds saved by each byte that the GPU reads instead of the CPU."""
        return 1 / self.cpu - 1 / self.gpu


DEFAULT_SPEEDS = Speeds()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a model's parts go.

    gpu_idx    for each block int32 [ffn], 1 for a neuron on the GPU, otherwise 0
    dense      tensors on the GPU
    cache      of "K" and "V", those on the GPU
    budget     bytes of all that is on the GPU, at most
    capacity   bytes of neurons, at most
    neuron     bytes of a neuron of each block
    notes      what did not fit, and what was assumed
    """

    gpu_idx: tuple[Ints, ...]
    dense: tuple[str, ...]
    cache: tuple[str, ...]
    budget: int
    capacity: int
    neuron: tuple[int, ...]
    notes: tuple[str, ...] = ()

    @property
    def buckets(self) -> tuple[Ints, ...]:
        """Indices of the neurons on the GPU, for each block int32, ascending."""
        return tuple(np.flatnonzero(idx).astype(np.int32) for idx in self.gpu_idx)

    @property
    def needed(self) -> int:
        """Bytes of the neurons on the GPU."""
        return _needed(self.gpu_idx, self.neuron)

    def covered(self, activations: Activations) -> tuple[float, ...]:
        """Share of each block's activations that belongs to neurons on the GPU."""
        return tuple(
            float(counts[idx == 1].sum() / max(1, counts.sum()))
            for counts, idx in zip(activations.counts, self.gpu_idx, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Found:
    """A placement, its file, and whether that was "reused", "written", "not kept" or, with no index
    wanted, "ignored"."""

    placement: Placement
    path: Path
    state: str


def place(
    model: GGUFFile,
    activations: Activations,
    budget: int,
    *,
    context: int = 0,
    kv_format: str = "F16",
    speeds: Speeds = DEFAULT_SPEEDS,
) -> Placement:
    """The neurons that save most within `budget` bytes, after the parts that come first. Raises
    `PlacementError`, and `StatisticsError` where the statistics are of another model."""
    empty, _ = _empty(model, activations, budget, context, kv_format)
    return _filled(empty, activations, speeds)


def find(
    model: GGUFFile,
    activations: Activations | None,
    budget: int,
    *,
    context: int = 0,
    kv_format: str = "F16",
    speeds: Speeds = DEFAULT_SPEEDS,
    reset: bool = False,
    disable: bool = False,
) -> Found:
    """The placement kept beside the model if it fits, otherwise a new one, which is then kept.

    A kept one fits if it was made of this model, these statistics (where given), budget, cache and
    speeds; PowerInfer's own files, which do not say, if shape and size match. `reset` ignores any
    file, and `disable` neither reads nor writes one: no neuron is on the GPU. Raises as `place`
    does, and where there are no statistics for a placement.
    """
    path = path_of(model.path)
    empty, cache = _empty(model, activations, budget, context, kv_format)
    if disable:
        return Found(empty, path, "ignored")
    made_of = _made_of(model, activations, budget, cache, speeds)
    why = ""
    if path.exists() and not reset:
        try:
            index = gpu_index.read(path)
            why = _misfit(index, empty, made_of)
        except (GGUFError, GpuIndexError) as error:
            why = str(error).removeprefix(f"{shown_path(path)}: ")
        if not why:
            return Found(replace(empty, gpu_idx=index.gpu_idx), path, "reused")
        why = f"{shown_path(path)}: not used: {why}"
    if activations is None:
        raise PlacementError(
            f"{why or f'{shown_path(path)}: there is no index'}; to make one, name statistics"
        )
    new = _filled(empty, activations, speeds)
    notes = (*((why,) if why else ()), *new.notes)
    try:
        gpu_index.write(path, GpuIndex(new.gpu_idx, new.needed, made_of))
    except OutputError as error:
        return Found(replace(new, notes=(*notes, f"not kept: {error}")), path, "not kept")
    return Found(replace(new, notes=notes), path, "written")


def _empty(
    model: GGUFFile, activations: Activations | None, budget: int, context: int, kv_format: str
) -> tuple[Placement, dict[str, int]]:
    """A placement without neurons, beside which the cache is counted. Raises where the statistics
    are of another model."""
    sizes = parts(model, context, kv_format)
    if activations:
        activations.check(model, sizes.ffn)
    space = room(sizes, budget)
    gpu_idx = tuple(np.zeros(size, np.int32) for size in sizes.ffn)
    found = Placement(
        gpu_idx, space.dense, space.cache, budget, space.neurons, sizes.neuron, space.notes
    )
    return found, sizes.cache


def _filled(empty: Placement, activations: Activations, speeds: Speeds) -> Placement:
    """Fill a placement with the neurons that save most in the remaining bytes."""
    if not empty.capacity:
        return empty
    notes, tokens = list(empty.notes), activations.tokens
    if not tokens:
        tokens = max(1, *(int(counts.max()) for counts in activations.counts))
        notes.append(f"of how many tokens the statistics are is not known: {tokens:,} are assumed")
    layers = [
        grouped(counts, neuron, speeds.saved / tokens)
        for counts, neuron in zip(activations.counts, empty.neuron, strict=True)
    ]
    solution = solve(layers, empty.capacity, speeds.synchronisation)
    if solution.gap:
        notes.append(
            f"the search was ended: it saves {1e3 * solution.worth:.4g} ms a token, the best answer"
            f" at most {1e3 * solution.gap:.2g} ms more"
        )
    if not any(solution.groups):
        notes.append("no neuron is on the GPU: no group fits, or none is worth a synchronisation")
    gpu_idx = tuple(
        _hottest(counts, GROUP * groups)
        for counts, groups in zip(activations.counts, solution.groups, strict=True)
    )
    return replace(empty, gpu_idx=gpu_idx, notes=tuple(notes))


def _hottest(counts: Ints, many: int) -> Ints:
    """The most active neurons; ties go to the lower index."""
    gpu_idx = np.zeros(len(counts), np.int32)
    gpu_idx[np.argsort(-counts, kind="stable")[:many]] = 1
    return gpu_idx


def _made_of(
    model: GGUFFile,
    activations: Activations | None,
    budget: int,
    cache: dict[str, int],
    speeds: Speeds,
) -> dict[str, str]:
    """Everything that determines a placement."""
    weights = hashlib.sha256(f"{model.size} {model.header} {identity(model)}".encode())
    return {
        "model": weights.hexdigest(),
        **({"statistics": activations.digest} if activations else {}),
        "budget": str(budget),
        "cache": " ".join(map(str, cache.values())),
        "solver": f"{GROUP} {' '.join(map(repr, asdict(speeds).values()))}",
    }


def _misfit(index: GpuIndex, empty: Placement, made_of: dict[str, str]) -> str:
    """Why an index cannot be used; "" if it can."""
    shape = [len(idx) for idx in index.gpu_idx]
    if shape != [len(idx) for idx in empty.gpu_idx]:
        return "it is of other blocks, or neurons, than the model has"
    if index.made_of:
        changed = [what for what, value in made_of.items() if index.made_of.get(what) != value]
        if changed:
            verb = "has" if len(changed) == 1 else "have"
            return f"{' and '.join(changed)} {verb} changed"
    needed = max(_needed(index.gpu_idx, empty.neuron), index.capacity)
    if needed > empty.capacity:
        return f"it needs {needed:,} bytes for neurons, {empty.capacity:,} are left"
    return ""


def _needed(gpu_idx: tuple[Ints, ...], neuron: tuple[int, ...]) -> int:
    return sum(int(idx.sum()) * size for idx, size in zip(gpu_idx, neuron, strict=True))
