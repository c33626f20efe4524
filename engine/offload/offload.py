"""A model under a memory budget: which weights are resident, which stream, and the steps that read
them."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing

from engine.compile.arena import place
from engine.compile.build import Built
from engine.compile.packed_weights import PAGE, paged
from engine.compile.plan import CpuStep, Plan, Tuned, stages_of, with_own
from engine.compile.stages import Call, touched
from engine.gguf.file import GGUFFile
from engine.offload import neurons as pools
from engine.offload import residency
from engine.offload.budget import Budget, parse_bytes
from engine.offload.bundle import Bundle
from engine.offload.disk import Disk, OffloadError, jobs_of, sparse_tensors
from engine.offload.experts import stacks_of, tensors_of
from engine.offload.mtp import MTPBlock
from engine.offload.neurons import Neurons, Source
from engine.offload.pinning import activations
from engine.offload.residency import Residency
from engine.offload.rows import Rows
from engine.offload.stream import Stored, Stream
from engine.options import Options
from engine.passes.stream import fetch, gather
from kernels.cpu.formats.packing import aligned
from kernels.cpu.runtime.io_pool import IOPool
from kernels.cpu.runtime.team import Team
from reference.op import Array

READERS = 32
AT_ONCE = 2**26  # bytes of a resident weight in one read
INPUTS = 2**23  # upper bound on bytes of a step's inputs and of requests to the readers
REQUESTS = 2**10  # in the readers' ring, at least


class Offload:
    """A model's weights within `options.ram_budget`: of its `steps` with kernels, of a file with
    these `bundles`; those of blocks that are `mtp_blocks` stay in memory.

    steps      as they meet their weights: in memory, in the ring, in the pool of neurons
    arrays     of their values, by name
    stream     what the plan waits for, if any weights stream
    neurons    of sparse blocks, or the experts of mixtures, if there are any
    resident   bytes of the weights that stay in memory
    notes      what is not as one would think

    The first time, weights are packed into a file beside other caches, from which they are read
    from then on. Raises `ModelError` for a budget that is too small, and says what would do.
    """

    def __init__(
        self,
        built: Built,
        steps: Sequence[CpuStep],
        file: GGUFFile,
        bundles: Mapping[int, Bundle],
        team: Team,
        options: Options,
        mtp_blocks: Sequence[MTPBlock] = (),
    ) -> None:
        limits = built.limits
        cache_bytes = sum(kept.nbytes for kept in (built.caches | built.states).values())
        by_cells = {at: size for one in mtp_blocks for at, size in one.caches.items()}
        cache_bytes += sum(by_cells.values())
        self._resources = ExitStack()
        try:
            for one in mtp_blocks:
                self._resources.enter_context(closing(one.rows))
            self.rows = self._resources.enter_context(closing(Rows(file, limits["tokens"])))
            gathered, self.arrays = gather(self.rows)(steps, {})
            self.steps = [with_own(step, limits) for step in gathered]
            counts = None
            if options.activation:
                counts = activations(options.activation, file, built.config)
            sparse = sparse_tensors(self.steps, built.config)
            stacks = stacks_of(self.steps, file)
            pooled = {n for names in sparse.values() for n in names} | tensors_of(stacks)
            others = [step for one in mtp_blocks for step in one.steps]
            jobs = jobs_of([*self.steps, *others], file, pooled)
            disk = Disk(jobs, sparse, stacks, file, bundles, options.neuron_bundles)
            self._disk = self._resources.enter_context(closing(disk))
            stages = stages_of(self.steps)
            for call in (call for stage in stages for call in stage):
                call.share.compile()  # its bytes are not available for weights
            drafts = sorted(set[str]().union(*(one.weights(disk.stored) for one in mtp_blocks)))
            order = in_order(stages, disk.stored)
            order = {name: size for name, size in order.items() if name not in drafts}
            _, arena = place(touched(stages), limits, [built.logits, built.graph.hidden])
            step = arena + INPUTS + sum(array.nbytes for array in self.arrays.values())
            step += sum(one.step_bytes for one in mtp_blocks)
            kept = sum(paged(disk.stored[name].size) for name in drafts)
            total = parse_bytes(options.ram_budget)
            shared(Budget.now(total, cache_bytes, step, kept), order, disk.sources)  # or why pack
            disk.open(team, options.progress.packed)
            budget = Budget.now(total, cache_bytes, step, kept)
            split, room = shared(budget, order, disk.sources)
            self.stream = Stream(split.ring, disk.stored, team.n_threads)
            self.neurons = None
            if disk.sources:
                counter = len(split.ring.names)
                self.neurons = Neurons(disk.sources, room, counter, options.neuron_window, counts)
            self._fill([*split.resident, *drafts], team.n_threads)
            self._void = False  # whether reads in flight may be invalid
            self.notes = [*disk.notes, self._residency_note(pins=counts is not None)]
        except BaseException:
            self._resources.close()
            raise

    def _fill(self, resident: Sequence[str], threads: int) -> None:
        """Start the readers and read the resident weights."""
        disk, stream, neurons = self._disk, self.stream, self.neurons
        counters = len(stream.names) + (neurons.counters if neurons else 0)
        requests = max(REQUESTS, stream.reads, neurons.reads if neurons else 0)
        files = [file.file for file in disk.files]
        capacity = 1 << requests.bit_length()
        self.readers = self._resources.enter_context(
            IOPool(files, READERS, threads, max(1, counters), capacity)
        )
        stream.read_by(self.readers)
        weights = self._read(resident, disk.stored)
        if neurons:
            neurons.read_pinned(self.readers)
        disk.check()
        self.resident = sum(array.nbytes for array in weights.values())
        self.arrays |= disk.shaped(weights | stream.weights)
        if neurons:
            self.steps, self.arrays = fetch(neurons, self.readers)(self.steps, self.arrays)

    def _read(self, names: Sequence[str], stored: Mapping[str, Stored]) -> dict[str, Array]:
        """Read resident weights."""
        sizes = [paged(stored[name].size) for name in names]
        memory, found, begin = aligned(sum(sizes), PAGE), {}, 0
        for name, size in zip(names, sizes, strict=True):
            for at in range(0, size, AT_ONCE):
                piece = memory[begin + at : begin + min(at + AT_ONCE, size)]
                self.readers.read(0, stored[name].offset + at, [piece])
            found[name] = memory[begin : begin + stored[name].size]
            begin += size
        return found

    def _residency_note(self, *, pins: bool) -> str:
        text = f"ram_budget: {self.resident / 1e6:.0f} MB of weights stay in memory"
        if self.stream.names:
            text += f", {self.stream.bytes / 1e6:.0f} MB are read for each step"
        if self.neurons:
            share = self.neurons.kept_share
            whose = "mixtures" if self.neurons.named == "experts" else "sparse blocks"
            text += f", and there is room for {share:.0%} of the {whose}' {self.neurons.named}"
            if pins:
                pinned = sum(self.neurons.pinned.values())
                text += f", of which the {pinned:,} most active are pinned"
        return text

    def begin(self, inputs: Mapping[str, Array], tokens: int) -> None:
        """Before a step of so many tokens: read the embedding rows that its inputs choose. If the
        previous step failed, everything in flight is discarded."""
        if self._void:
            self._restart()
        self.readers.patient = False
        self.rows.gather({name: inputs[name][:tokens].tolist() for name in self.rows.choosing})
        self._void = True

    def came(self) -> bool:
        """Whether everything the last step waited for has arrived; if a signal interrupted it, the
        step must be run again. Raises `OffloadError` where reading failed."""
        if fault := self.readers.fault:
            raise OffloadError(fault)
        if self.readers.interrupted:
            self._restart()
            self.readers.patient = True  # the signal's handler has not raised
            return False
        if self.stream.names or self.neurons:
            self._disk.check()
        self._void = False
        return True

    def _restart(self) -> None:
        self.readers.reset()
        self.stream.restart()
        if self.neurons:
            self.neurons.restart()

    def close(self) -> None:
        """Stop the readers and close their files."""
        self._resources.close()


def in_order(stages: Sequence[Sequence[Call]], stored: Mapping[str, Stored]) -> dict[str, int]:
    """Bytes of the stored weights, in the order of a step."""
    values = (value for stage in stages for call in stage for value in call.values())
    return {value.name: stored[value.name].size for value in values if value.name in stored}


def shared(
    budget: Budget, order: Mapping[str, int], sources: Mapping[int, Source]
) -> tuple[Residency, int]:
    """Divide the budget between weights, which come first, and the pool of neurons: the resident
    weights, and the pool's bytes. The pool must hold all neurons of any one block."""
    least = pools.least(sources) if sources else 0
    split = residency.divide(order, budget.room - least)
    if split is None:
        raise budget.refuse(residency.least(order) + least)
    used = sum(paged(order[name]) for name in split.resident) + split.ring.size
    return split, budget.room - used


class StreamedPlan(Plan):
    """A plan whose weights are read from disk while it runs: a step begins by reading the embedding
    rows that its tokens need, and is repeated until all it waited for has arrived. Raises
    `OffloadError` where reading failed."""

    def __init__(self, offload: Offload, built: Built, team: Team, tuned: Tuned) -> None:
        super().__init__(
            offload.steps, built.memory, built.limits, built.logits, team, offload.stream,
            tuned=tuned, hidden=built.graph.hidden,
        )  # fmt: skip
        self.offload, self._tokens = offload, 0

    def resize(self, **sizes: int) -> None:
        super().resize(**sizes)
        self._tokens = sizes["tokens"]

    def run(self, part: int | None = None) -> None:
        self.offload.begin(self.inputs, self._tokens)
        super().run(part)
        while not self.offload.came():
            super().run(part)
