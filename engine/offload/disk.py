"""Locations of all weights that may be read while a model runs: the packed file, and bundles."""

from collections.abc import Mapping, Sequence

from engine.compile.packed_weights import Copied, Job, Packed, Places, packed_file
from engine.compile.plan import CpuStep
from engine.config import ModelConfig, ModelError
from engine.gguf.file import GGUFFile
from engine.graph import Value
from engine.offload import neurons as pools
from engine.offload.bundle import Bundle
from engine.offload.direct_file import DirectFile
from engine.offload.experts import Stack
from engine.offload.neurons import Group, Source
from engine.offload.stream import Stored
from engine.progress import ProgressCallback
from kernels.cpu.runtime.team import Team
from reference.op import Array


class OffloadError(ModelError):
    """Weights could not be read while the model ran: the step's results are void."""


class Disk:
    """Locations of all weights that may be read while the model runs.

    stored     weights in the packed file, by the names of their values sources    neurons of sparse
    blocks, in the packed file or in a bundled model's own; and experts of mixtures files      once
    open: the packed file, and the model's where neurons are read from it
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        sparse: Mapping[int, Sequence[str]],
        stacks: Mapping[int, Sequence[Stack]],
        file: GGUFFile,
        bundles: Mapping[int, Bundle],
        side_by_side: bool,
    ) -> None:
        groups: dict[int, Sequence[Group | Stack]] = {
            i: pools.groups_of(file, names, side_by_side)
            for i, names in sparse.items()
            if i not in bundles
        }
        groups |= stacks
        named: dict[str, Group | Stack] = {
            group.layout: group for several in groups.values() for group in several
        }
        self._jobs: dict[str, Job] = {**jobs, **named}
        self._model, self._bundled = file, any(i in bundles for i in sparse)
        self._places = Places(self._jobs, file)
        self.files: list[DirectFile] = []
        begins, sizes = self._places.begins, self._places.sizes
        self.stored = {name: Stored(begins[name], sizes[name]) for name in jobs}
        self.sources: dict[int, Source] = {
            i: pools.of_bundle(bundles[i], 1)
            if i in bundles
            else pools.of_groups(file, groups[i], [begins[g.layout] for g in groups[i]])
            for i in sorted({*sparse, *stacks})
        }

    def open(self, team: Team, progress: ProgressCallback | None) -> None:
        """Open the files; weights are packed now if they have not been."""
        path, stamp = packed_file(self._jobs, self._model, self._places, team, progress)
        self.files.append(DirectFile(path, stamp))
        if self._bundled:
            self.files.append(DirectFile(self._model.path, self._model.stamp))

    def check(self) -> None:
        """Raise `OffloadError` if a file was written to since."""
        for file in self.files:
            try:
                file.check()
            except OSError as error:
                raise OffloadError(str(error)) from None

    @property
    def notes(self) -> list[str]:
        return [file.note for file in self.files if file.note]

    def shaped(self, weights: Mapping[str, Array]) -> dict[str, Array]:
        """Packed weights in the shape that kernels take."""
        return {name: self._places.shaped(name, weight) for name, weight in weights.items()}

    def close(self) -> None:
        for file in self.files:
            file.close()


def sparse_tensors(steps: Sequence[CpuStep], config: ModelConfig) -> dict[int, list[str]]:
    """The matrices of each sparse block, whose rows are its neurons."""
    if not config.sparsity:
        return {}
    found: dict[int, list[str]] = {i: [] for i in config.sparsity.ranks}
    for step in steps:
        if step.node.op in ("sparse_linear", "sparse_axpy"):
            block = int(tensor_of(step).split(".")[1])
            if block in found:
                found[block].append(tensor_of(step))
    return found


def jobs_of(steps: Sequence[CpuStep], file: GGUFFile, left: set[str]) -> dict[str, Job]:
    """Packing jobs of the matrices in a step, without those `left` for the pool."""
    return {
        weight.name: Packed(tensor_of(step), how)
        if (how := step.kernel.pack)
        else Copied(weight.name)
        for step in steps
        if isinstance(weight := step.node.arguments.get("weight"), Value)
        and weight.format
        and tensor_of(step) in file.tensors
        and tensor_of(step) not in left
    }


def tensor_of(step: CpuStep) -> str:
    """The file's tensor that a step multiplies by, "" if there is none."""
    weight = step.node.arguments.get("weight")
    return step.weight or (weight.name if isinstance(weight, Value) else "")
