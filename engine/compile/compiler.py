"""From a graph to an executable: choose kernels, pack weights, lay out memory on the devices."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import cached_property, partial
from itertools import accumulate, chain, pairwise

import numpy as np

from engine.compile.build import Built
from engine.compile.executable import ByTokens, Executable
from engine.compile.packed_weights import Packed, packed_weights
from engine.compile.plan import CpuStep, Plan, Tuned, names_in, packed_name, spec_of, with_kernels
from engine.compile.tune import AT_LOAD, Tuner
from engine.errors import ModelError
from engine.gguf.file import GGUFFile
from engine.gpu.between_steps import BetweenSteps, DeviceSide, caches_of
from engine.gpu.device_plan import DevicePlan
from engine.gpu.hybrid import Hybrid
from engine.gpu.layout import laid_out
from engine.gpu.memory import DeviceRows, Uploaded
from engine.gpu.mirror import LOGPROBS
from engine.gpu.partition import partition_step
from engine.gpu.parts import ALL, Part
from engine.graph import Graph, Node, Value
from engine.model_info import ModelInfo
from engine.models.mtp import HIDDEN
from engine.offload.mtp import MTPBlock
from engine.offload.offload import Offload, StreamedPlan
from engine.options import Options
from engine.passes import Memory
from engine.passes.quantise import quantise
from engine.sampling.chain import sampling_spec
from kernels.cpu.runtime.cores import physical_cores
from kernels.cpu.runtime.team import Team
from kernels.cuda.runtime.device import Device
from kernels.dispatch import Dispatcher, KernelSpec
from kernels.kernel import PROMPT, Kernel
from kernels.tuning import chosen
from kernels.tuning import keep as keep_tuned
from kernels.tuning import load as load_tuned
from reference.op import Array
from reference.quantise_activations import QUANTISING


class Compiler:
    """Compiles the graphs of one model; weights packed for one graph serve the next.

    `samplers` are ops whose kernels are certified together with the model's. What lives as long as
    the model is entered into `resources`. `notes` report what may surprise: packed weights that
    could not be stored, blocks that stay on the CPU.
    """

    def __init__(
        self,
        file: GGUFFile,
        model_info: ModelInfo,
        options: Options,
        dispatcher: Dispatcher,
        device: Device | None,
        samplers: Sequence[str],
        resources: ExitStack,
    ) -> None:
        self._file, self._model_info = file, model_info
        self._options, self._dispatcher, self._device = options, dispatcher, device
        self._samplers, self._resources = samplers, resources
        self._packed: dict[str, Array] = {}
        self._uploaded: dict[str, Uploaded] = {}
        self.there: dict[str, DeviceRows] = {}
        self.notes: list[str] = []

    @cached_property
    def team(self) -> Team:
        """The threads; created once kernels are certified, since trials compile what threads
        run."""
        team = Team(self._options.threads or physical_cores(), self._options.pinned)
        return self._resources.enter_context(team)

    def compile(
        self, built: Built, mtp_blocks: Sequence[Built] = ()
    ) -> tuple[Executable, list[Executable]]:
        """The executable of the graph: on GPU and CPU, on the CPU with weights read from disk, or
        on the CPU alone; and the executables of the `mtp_blocks`."""
        options, blocks = self._options, built.config.blocks
        if self._device:
            experts = options.cpu_experts(blocks)
            ready = self._with_gpu(self._device, built, options.gpu_layers, experts)
            if HIDDEN not in self.there:  # the CPU holds what heads read
                return ready, [self.trial(one) for one in mtp_blocks]
            experts = int(experts >= blocks)
            beside = partial(self._with_gpu, self._device, beside=True)
            return ready, [beside(one, ALL, experts) for one in mtp_blocks]
        if options.ram_budget:
            return self._streamed(built, mtp_blocks)
        return self._resident(built), [self.trial(one) for one in mtp_blocks]

    def trial(self, built: Built) -> Plan:
        """An executable for a few tokens on the CPU, as soon as possible: sparse rows stay in the
        file's layout until it is known which blocks skip neurons, and nothing is tuned."""
        steps = _steps(built.graph, self._kernels_for(built.graph.nodes))
        self._pack(steps, built, trial=True)
        return Plan(steps, built.memory, built.limits, built.logits, self.team, tuned=self._knobs())

    def beside(
        self,
        graph: Graph,
        memory: Memory,
        limits: Mapping[str, int],
        last: Value,
        pauses: Sequence[int],
    ) -> BetweenSteps:
        """The executable of another graph that runs between steps, from pause to pause, each part
        on the device that holds the caches it changes; its result is the value `last`."""
        bounds = pairwise([0, *pauses, len(graph.nodes)])
        parts = [graph.nodes[begin:end] for begin, end in bounds]
        on_gpu = [bool(caches_of(part) & self.there.keys()) for part in parts]
        inputs = {name: a for name, a in memory.items() if name not in caches_of(graph.nodes)}
        theirs = [part for part, there in zip(parts, on_gpu, strict=True) if there]
        device = self._device_side(theirs, inputs, limits, last) if theirs else None
        own = [part for part, there in zip(parts, on_gpu, strict=True) if not there]
        given = {**memory, **(device.inputs if device else {})}
        plan = None
        if own:
            chosen = self._kernels_for(chain(*own))
            steps = [_steps(Graph(part), chosen) for part in own]
            (*later, _) = accumulate(map(len, steps))
            plan = Plan(list(chain(*steps)), given, limits, last, self.team, pauses=later)
        return BetweenSteps(on_gpu, plan, device, {name: given[name] for name in inputs})

    def _device_side(
        self,
        parts: Sequence[Sequence[Node]],
        inputs: Memory,
        limits: Mapping[str, int],
        last: Value,
    ) -> DeviceSide:
        """The executable of these parts on the device."""
        assert self._device
        needs = list(dict.fromkeys(spec_of(node) for part in parts for node in part))
        chosen = self._dispatcher.choose_on(self._device, needs, self._options.progress.certified)
        if lacking := [one for one in needs if one not in chosen]:
            raise ModelError(
                f"{self._device.name}: no CUDA kernel for {lacking[0].op}: load without a GPU"
            )
        own = [Part(True, tuple(part), (), ()) for part in parts]
        layout = laid_out(own, chosen, (), limits)
        return DeviceSide(DevicePlan(self._device, layout, {}, inputs, None, self.there), last)

    def _resident(self, built: Built) -> Executable:
        """Plans with all weights in memory: one, or two if prompts have kernels of their own."""
        graph, memory, limits, options = built.graph, built.memory, built.limits, self._options
        steps = _steps(graph, self._kernels_for(graph.nodes))
        of_prompts, tuned = self._steps_of_prompts(built), self._knobs()
        self._pack([*steps, *of_prompts], built, trial=False)
        plan = partial(Plan, logits=built.logits, team=self.team, tuned=tuned, hidden=graph.hidden)
        many = plan(of_prompts, memory, limits) if of_prompts else None
        if many:
            limits = {name: min(size, PROMPT - 1) for name, size in limits.items()}
        few = plan(steps, memory, limits)
        if options.tune:
            keep_tuned(Tuner(few, self.team, AT_LOAD, options.progress.tuned).tuned())
        return ByTokens(few, many) if many else few

    def _streamed(
        self, built: Built, mtp_blocks: Sequence[Built]
    ) -> tuple[StreamedPlan, list[Executable]]:
        """The plan with as many weights in memory as the budget allows, and the plans of MTP
        blocks, whose weights are all in memory."""
        memory, bundles = built.memory, self._model_info.bundles
        steps, *others = (
            _steps(one.graph, self._kernels_for(one.graph.nodes)) for one in (built, *mtp_blocks)
        )
        pairs = zip(mtp_blocks, others, strict=True)
        resident = [MTPBlock(one, steps, self._file) for one, steps in pairs]
        offload = Offload(built, steps, self._file, bundles, self.team, self._options, resident)
        self._resources.enter_context(closing(offload))
        memory |= offload.arrays
        _drop_unused(memory, offload.steps)
        memory |= built.inputs
        self.notes += offload.notes
        knobs = self._knobs()
        plans = [one.plan(offload.arrays, self.team, knobs) for one in resident]
        return StreamedPlan(offload, built, self.team, knobs), list[Executable](plans)

    def _with_gpu(
        self, device: Device, built: Built, layers: int, cpu_experts: int, beside: bool = False
    ) -> Executable:
        """The plan with the last blocks on a device, as many as were requested and fit; all of it
        for a graph `beside` the model."""
        options, memory = self._options, built.memory
        certified = options.progress.certified
        # of caches only those that heads read: a block's keys and values have the model's names
        hidden = {name: rows for name, rows in self.there.items() if name.startswith(HIDDEN)}
        partition = partition_step(
            built, layers, cpu_experts, device, self._dispatcher, certified, self._file,
            self._uploaded.keys() | hidden.keys(), chooses=not beside,
        )  # fmt: skip
        if beside and partition.notes:
            raise ModelError(f"{device.name}: of the MTP blocks {partition.notes[0]}")
        self.notes += partition.notes
        rest = partition.on_cpu()
        chosen = self._kernels_for(node for part in rest for node in part.nodes)
        steps = [_steps(part, chosen) for part in rest]
        inputs = {**built.inputs, **_inputs_of(built.graph, memory)}
        if partition.chooses:
            inputs[LOGPROBS] = np.zeros(built.limits["outputs"])
        there = DevicePlan(
            device, partition.layout, partition.weights, inputs, options.progress.packed,
            hidden, self._uploaded,
        )  # fmt: skip
        self.there = there.caches | self.there
        self._uploaded |= there.weights
        for name, rows in there.caches.items():
            for kept in (built.states, built.caches, built.pages):
                if name in kept:
                    kept[name] = rows
        self._pack(list(chain(*steps)), built, trial=False)
        return Hybrid(partition, there, steps, memory, self.team)

    def _knobs(self) -> Tuned:
        """Initial values of kernels' knobs at a node's sizes, from measurements."""
        return partial(chosen, threads=self.team.n_threads, known=load_tuned())

    def _steps_of_prompts(self, built: Built) -> list[CpuStep]:
        """The graph with kernels for many tokens; nothing if there are no such kernels."""
        if built.limits["tokens"] < PROMPT:
            return []
        chosen = self._kernels_for(built.graph.nodes, PROMPT)
        alone = any(kernel.fewest > 1 for kernel in chosen.values())
        return _steps(built.graph, chosen) if alone else []

    def _kernels_for(self, nodes: Iterable[Node], fewest: int = 1) -> dict[KernelSpec, Kernel]:
        """The CPU's kernels for steps of at least so many tokens."""
        certified = self._options.progress.certified
        own = list(dict.fromkeys(map(spec_of, nodes)))
        beside = [sampling_spec(op, self._model_info.config.vocab) for op in self._samplers]
        chosen = self._dispatcher.choose([*own, *beside], certified, fewest)
        for rounding, op in QUANTISING.items():
            sizes = {
                (("hidden", dict(need.shape)["hidden"]), need.times)
                for need, kernel in chosen.items()
                if kernel.activations == rounding
            }
            if sizes:
                needs = [KernelSpec(op, None, (size,), times) for size, times in sorted(sizes)]
                chosen[KernelSpec(op)] = self._dispatcher.choose(needs, certified)[needs[0]]
        return chosen

    def _pack(self, steps: Sequence[CpuStep], built: Built, trial: bool) -> None:
        """The arrays of these steps, with weights in the layouts that kernels stream."""
        memory = built.memory
        jobs = {
            packed_name(s.weight, s.kernel): Packed(s.weight, how)
            for s in steps
            if (how := s.kernel.pack)
        }
        if trial:
            rows = {name: job for name, job in jobs.items() if job.packing.apart}
            for name, job in rows.items():
                memory[name] = self._file.tensor(job.tensor)
                del jobs[name]
        self._packed, not_kept = packed_weights(
            jobs, self._file, self.team, self._options.progress.packed,
            self._options.keep_packed and not trial, ready=self._packed,
        )  # fmt: skip
        self.notes += not_kept
        memory |= self._packed
        stored = self._file.tensors.keys() - memory.keys()
        for name in stored & set[str]().union(*map(names_in, steps)):
            memory[name] = self._file.tensor(name)  # gathered rows, which a kernel takes unpacked
        _drop_unused(memory, steps)
        memory |= built.inputs
        for name, array in memory.items():
            memory[name] = np.ascontiguousarray(array)


def _inputs_of(graph: Graph, memory: Memory) -> Memory:
    """The inputs that its nodes need before a step."""
    given = (value for node in graph.nodes for value in node.arguments.values())
    names = (value.name for value in given if isinstance(value, Value) and value.kind == "input")
    return {name: memory[name] for name in names}


def _steps(graph: Graph, chosen: Mapping[KernelSpec, Kernel]) -> list[CpuStep]:
    """The graph's nodes with these kernels."""
    graph, _ = quantise(chosen)(graph, {})
    return with_kernels(graph, chosen)


def _drop_unused(memory: Memory, steps: Sequence[CpuStep]) -> None:
    """Drop arrays that no step reads, such as the file's weights once they are packed."""
    used = set[str]().union(*map(names_in, steps))
    for name in [name for name in memory if name not in used]:
        del memory[name]
