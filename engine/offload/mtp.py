"""MTP blocks of a model under a memory budget: their weights are resident, except for embedding
tables, whose rows are read before each step."""

from collections.abc import Collection, Mapping, Sequence

from engine.compile.arena import place
from engine.compile.build import Built
from engine.compile.plan import CpuStep, Plan, Tuned, names_in, stages_of, with_own
from engine.compile.stages import touched
from engine.gguf.file import GGUFFile
from engine.offload.rows import Rows
from engine.passes import Memory
from engine.passes.stream import gather
from kernels.cpu.runtime.team import Team
from reference.op import Array


class MTPBlock:
    """An MTP block: its `steps` with kernels, reading gathered embedding rows, and the memory of
    these rows in `arrays`."""

    def __init__(self, built: Built, steps: Sequence[CpuStep], file: GGUFFile) -> None:
        self._built, self.rows = built, Rows(file, built.limits["tokens"])
        gathered, self.arrays = gather(self.rows)(steps, {})
        self.steps = [with_own(step, built.limits) for step in gathered]
        self._named = set[str]().union(*map(names_in, gathered))

    def weights(self, stored: Collection[str]) -> set[str]:
        """Its packed weights by name."""
        return self._named.intersection(stored)

    @property
    def caches(self) -> dict[int, int]:
        """Bytes of the arrays with one row for each cell, by address."""
        values = (value for step in self.steps for value in step.arrays.values())
        names = {value.name for value in values if value.kind == "cache"}
        arrays = [self._built.memory[name] for name in names]
        return {array.ctypes.data: array.nbytes for array in arrays}

    @property
    def step_bytes(self) -> int:
        """Bytes of a step besides those."""
        stages = stages_of(self.steps)
        _, arena = place(touched(stages), self._built.limits, [self._built.logits])
        return arena + sum(array.nbytes for array in self.arrays.values())

    def plan(self, weights: Mapping[str, Array], team: Team, tuned: Tuned) -> "MTPPlan":
        """The executable plan with these weights by name."""
        memory = {**self._built.memory, **weights, **self.arrays}
        memory = {name: array for name, array in memory.items() if name in self._named}
        return MTPPlan(self, self._built, memory, team, tuned)


class MTPPlan(Plan):
    """Its plan: a step begins by reading the embedding rows that its tokens need."""

    def __init__(
        self, block: MTPBlock, built: Built, memory: Memory, team: Team, tuned: Tuned
    ) -> None:
        arrays = memory | dict(built.inputs)
        super().__init__(block.steps, arrays, built.limits, built.logits, team, tuned=tuned)
        self._rows, self._tokens = block.rows, 0

    def resize(self, **sizes: int) -> None:
        super().resize(**sizes)
        self._tokens = sizes["tokens"]

    def run(self, part: int | None = None) -> None:
        chosen = {n: self.inputs[n][: self._tokens].tolist() for n in self._rows.choosing}
        self._rows.gather(chosen)
        super().run(part)
