"""A model ready to step: a GGUF file's weights behind certified kernels, its cache and its plan."""

import math
import mmap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from engine.cells import Cells
from engine.checks import check_memory, check_step, check_window
from engine.config import ModelError
from engine.described import described
from engine.gguf_file import GGUFFile
from engine.gpu import greedy
from engine.gpu.build import joined, load
from engine.gpu.division import Whole, divide
from engine.gpu.groups import DeviceStep
from engine.gpu.hybrid import Hybrid
from engine.gpu.upload import DeviceRows
from engine.gpu.weights import Weights
from engine.graph import Graph, Node, Value
from engine.inputs import caches_of, inputs_of, step_inputs, weights_of
from engine.observed import counting, counting_predicted, observing
from engine.offload.offload import Computed, Offload, Opened
from engine.options import Options
from engine.packed_weights import Packed, packed_weights
from engine.placement.applied import placed
from engine.plan import Plan, Step, Tuned, names_in, need, packed_name, with_kernels
from engine.sampler import Likeliest
from engine.sampling_chain import over
from engine.sparsity import dense_where_faster
from engine.tune import AT_LOAD, Tuner
from kernels.background import Background
from kernels.certificates import Store
from kernels.choose import Chooser, Need
from kernels.compiled import compile_apart
from kernels.cpu.cores import physical_cores
from kernels.cpu.team import Team
from kernels.cuda.current import current
from kernels.cuda.device import Device
from kernels.cuda.kernel import CudaKernel
from kernels.kernel import PROMPT, Kernel
from kernels.tuning import chosen
from kernels.tuning import keep as keep_tuned
from kernels.tuning import load as load_tuned

Array = np.ndarray[Any, np.dtype[Any]]

ROUNDING = Need("quantise_activations")
TRIED = 32  # tokens by which a load finds how many neurons are active


class NumericalError(ArithmeticError):
    """The model's output is not a number."""


class Model:
    """Takes batches of tokens to logits. Knows nothing of text or sampling."""

    def __init__(
        self,
        source: str | Path | GGUFFile,
        options: Options | None = None,
        samplers: Sequence[str] = (),
    ) -> None:
        """Of a path, or of an open file, which is the model's from then on. Kernels of the ops of
        `samplers` are certified with its own, since somebody will want them."""
        self.options, self._samplers = options or Options(), samplers
        self._resources = ExitStack()
        self._stepping = threading.Lock()
        self.ready: Plan | Hybrid | None = None
        self.prompts: Plan | None = None
        try:
            opened = source if isinstance(source, GGUFFile) else GGUFFile(source)
            self.file = self._resources.enter_context(opened)
            self._load()
        except BaseException:
            self._resources.close()
            raise

    @cached_property
    def team(self) -> Team:
        """The threads; made when kernels have been tried, by whom a fresh machine has had compiled
        what threads run."""
        team = Team(self.options.threads or physical_cores(), self.options.pinned)
        return self._resources.enter_context(team)

    def _load(self) -> None:
        options = self.options
        self.device = current() if options.device == "cuda" else None
        self.metadata = self.file.metadata
        said = described(self.file, options)
        self.config, self.family, self.bundles = said.config, said.family, said.bundles
        self._of_sparsity = said.notes
        context = options.context or min(self.config.context, 4096)
        check_window(self.file, self.config, context)
        check_memory(self.config, options, context)
        self.limits = {
            "tokens": min(options.batch, context),
            "outputs": min(options.outputs, options.batch, context),
        }
        self.cells = Cells(context, options.sequences)
        apart = options.compiles_apart
        self.chooser = Chooser(
            Store(), options.strict, options.variant, options.numerics,
            {"tokens": max(self.limits.values())}, apart,
        )  # fmt: skip
        if apart:
            compile_apart()  # what the team needs
        self.caches: dict[str, Array | DeviceRows] = {}
        self.offload: Offload | None = None
        self._packed: dict[str, Array] = {}
        self._not_kept: list[str] = []
        self._left: tuple[str, ...] = ()
        if options.vram_budget:
            self.config, notes = placed(self.config, self.file, options, context, self.device)
            self._of_sparsity += notes
        split = self.config.sparsity and self.config.sparsity.apart
        if self.config.sparsity and options.sparse == "auto" and not (options.ram_budget or split):
            self._run_dense_where_faster(dict.fromkeys(self.config.sparsity.ranks, 0.0))
            if self.config.sparsity and not self.device:  # whose speeds are not known here
                self._run_dense_where_faster(self._try_predictors(context))
        self._prepare(context)
        self.threshold = self.config.sparsity.threshold if self.config.sparsity else 0.0
        if options.background:
            self._resources.enter_context(closing(Background(self.chooser.serving)))

    def _prepare(self, context: int, trial: bool = False) -> None:
        """Kernels, packed weights and the plan for the model as its config has it now; for a trial
        with counts of what predictors name."""
        options, inputs = self.options, inputs_of(self.limits, self.cells)
        arrays = dict(inputs)
        weights = weights_of(self.file, self.family, self.config, arrays)
        caches = caches_of(self.config, options.kv_format, context)
        for name, cache in caches.items():
            # zeroed, so that untouched cells cost no memory until they are used
            arrays[name] = np.zeros(cache.sizes({}), np.uint8)
        self.caches = {name: arrays[name] for name in caches}
        try:
            graph, logits = self.family.build(self.config, weights, step_inputs(self.cells), caches)
        except ModelError as error:
            raise ModelError(f"{self.file.path}: {error}") from None
        if options.observe:
            wholes = {name: rows.tensor for name, rows in self.family.parts(self.config).items()}
            graph, self.observed = observing(graph, wholes)
            arrays |= self.observed.sums
        if trial:
            graph, counts = counting_predicted(graph)
            arrays |= counts
        elif options.count_neurons:
            graph, self.counted, counts = counting(graph)
            arrays |= counts
        if options.rewrite:
            graph, memory = options.rewrite(graph, self.limits)
            arrays |= memory
        self.prompts = None
        if self.device and not trial:
            self.ready = self._with_gpu(self.device, graph, arrays, inputs, logits)
            return
        steps = with_kernels(graph, self._kernels_for(graph.nodes))
        if options.ram_budget:
            self.ready = self._offloaded(steps, arrays, logits)
            return
        limits, of_prompts, tuned = self.limits, self._steps_of_prompts(graph), self._knobs()
        self._pack([*steps, *of_prompts], arrays, trial)
        if of_prompts:
            self.prompts = Plan(of_prompts, arrays, limits, logits, tuned=tuned)
            limits = {name: min(size, PROMPT - 1) for name, size in limits.items()}
        self.ready = plan = Plan(steps, arrays, limits, logits, tuned=tuned)
        if options.tune and not trial:
            keep_tuned(Tuner(plan, self.team, AT_LOAD, options.progress.tuned).tuned())

    def _knobs(self) -> Tuned:
        """How the knobs of kernels begin at a node's sizes, by what was measured."""
        return partial(chosen, threads=self.team.n_threads, known=load_tuned())

    def _steps_of_prompts(self, graph: Graph) -> list[Step]:
        """The graph with the kernels that are for many tokens; nothing, if none is for them
        alone."""
        if self.limits["tokens"] < PROMPT:
            return []
        chosen = self._kernels_for(graph.nodes, PROMPT)
        alone = any(kernel.fewest > 1 for kernel in chosen.values())
        return with_kernels(graph, chosen) if alone else []

    def _kernels_for(self, nodes: Iterable[Node], fewest: int = 1) -> dict[Need, Kernel]:
        """The CPU's, for steps of at least so many tokens."""
        certified = self.options.progress.certified
        own = list(dict.fromkeys(map(need, nodes)))
        beside = [over(op, self.config.vocab) for op in self._samplers]
        chosen = self.chooser.choose([*own, *beside], certified, fewest)
        rounded = {
            dict(need.shape)["hidden"]
            for need, kernel in chosen.items()
            if kernel.activations == "int8"
        }
        if rounded:
            needs = [Need(ROUNDING.op, None, (("hidden", size),)) for size in sorted(rounded)]
            chosen[ROUNDING] = self.chooser.choose(needs, certified)[needs[0]]
        return chosen

    def _with_gpu(
        self,
        device: Device,
        graph: Graph,
        arrays: dict[str, Array],
        inputs: Mapping[str, Array],
        logits: Value,
    ) -> Hybrid:
        """The plan with its last blocks on a device, as many as were asked for and can be."""
        options, progress, sparsity = self.options, self.options.progress, self.config.sparsity
        apart = sparsity is not None and sparsity.apart
        whole = Whole(graph, logits, self.config.blocks, self.limits, apart)
        weights = Weights(arrays, self.file)
        division = divide(
            whole, options.gpu_layers, device, self.chooser, progress.certified, weights
        )
        self._left = division.notes
        rest = division.on_cpu()
        chosen = self._kernels_for(node for part in rest for node in part.nodes)
        steps = [with_kernels(part, chosen) for part in rest]
        loaded = load(division, weights, inputs, progress.packed)
        self.caches |= loaded.caches
        self._pack(list(chain(*steps)), arrays, trial=False)
        choosing: dict[Need, CudaKernel] = {}
        if division.parts[-1].on_gpu:  # which then has the logits
            needs = greedy.needs(self.config.vocab)
            choosing = self.chooser.choose_on(device, needs, progress.certified)
        return joined(division, loaded, steps, arrays, choosing)

    def _offloaded(self, steps: Sequence[Step], arrays: dict[str, Array], logits: Value) -> Plan:
        """The plan with weights in memory as far as the budget goes."""
        cache_bytes = sum(cache.nbytes for cache in self.caches.values())
        opened = Opened(self.file, self.bundles, self.config)
        computed = Computed(steps, self.limits, logits)
        offload = Offload(opened, computed, self.team, self.options, cache_bytes)
        self.offload = self._resources.enter_context(closing(offload))
        arrays |= self.offload.arrays
        inputs = inputs_of(self.limits, self.cells)
        _drop_unused(arrays, self.offload.steps)
        given, stream = inputs | arrays, self.offload.stream
        return Plan(self.offload.steps, given, self.limits, logits, stream, tuned=self._knobs())

    def set_threshold(self, threshold: float) -> None:
        """What logits of predictors have to reach from the next step on."""
        if not self.config.sparsity:
            raise ModelError(f"{self.file.path}: no block runs sparse, so there is no threshold")
        if np.isnan(threshold):
            raise ModelError("the sparse threshold is nan, not a number")
        assert self.ready
        for i in self.config.sparsity.ranks:
            self.ready.set(f"blk.{i}.mask", "threshold", threshold)
            if self.prompts:
                self.prompts.set(f"blk.{i}.mask", "threshold", threshold)
        self.threshold = float(threshold)

    def _run_dense_where_faster(self, shares: Mapping[int, float]) -> None:
        """Given the share of neurons that predictors name, by block."""
        self.config, notes = dense_where_faster(self.config, self.file, shares)
        self._of_sparsity += notes

    def _try_predictors(self, context: int) -> dict[int, float]:
        """The share of its neurons that each block's predictor names, over some tokens."""
        self._prepare(context, trial=True)
        count = min(TRIED, self.cells.capacity)
        tokens = np.random.default_rng(0).integers(0, self.config.vocab, count)
        self.evaluate([int(token) for token in tokens], 0)
        self.cells.clear()
        assert self.config.sparsity
        named = {i: self.plan.inputs[f"blk.{i}.predicted"] for i in self.config.sparsity.ranks}
        return {i: float(counts.mean()) / count for i, counts in named.items()}

    def close(self) -> None:
        """Let threads and memory go; the model cannot be used afterwards."""
        self._resources.close()
        self.ready = self.prompts = None
        for name in ("caches", "_packed"):
            self.__dict__.pop(name, None)

    def touch(self) -> None:
        """Take all the memory that steps will: caches, activations, pages of the mapped file."""
        arenas = [plan.arena for plan in (self.plan, self.prompts) if plan]
        for array in (*arenas, *self.plan.inputs.values()):
            pages = array.reshape(-1).view(np.uint8)[:: mmap.PAGESIZE]
            if array.flags.writeable:
                pages[:] = pages
            else:
                pages.max(initial=0)

    @property
    def plan(self) -> Plan:
        """What a step runs, of a model that is the CPU's alone; one of few tokens, where there are
        `prompts` for many."""
        if not isinstance(self.ready, Plan):
            raise ModelError(f"{self.file.path}: no single plan: the model is on a GPU, or closed")
        return self.ready

    def plan_for(self, tokens: int) -> Plan:
        """What a step of so many tokens runs, of a model that is the CPU's alone."""
        return self.prompts if self.prompts and tokens >= PROMPT else self.plan

    def _ready(self, tokens: int) -> Plan | Hybrid | None:
        return self.plan_for(tokens) if self.prompts else self.ready

    @property
    def steps(self) -> list[Step | DeviceStep]:
        """The nodes of a step with their kernels, in the order in which they run; then those of a
        prompt's step, if they are others."""
        return [step for ready in (self.ready, self.prompts) if ready for step in ready.steps]

    @property
    def notes(self) -> list[str]:
        """What is not as one would think: kernels that were refused, weights that were not kept,
        blocks that run dense, neurons that a budget would have elsewhere."""
        offload = self.offload.notes if self.offload else []
        return [*self.chooser.notes, *self._left, *self._not_kept, *self._of_sparsity, *offload]

    def _pack(self, steps: Sequence[Step], arrays: dict[str, Array], trial: bool) -> None:
        """The arrays of these steps, weights as the kernels stream them. Rows that are only to be
        apart stay where they are until a trial has told which blocks they are read in."""
        jobs = {
            packed_name(s.weight, s.kernel): Packed(s.weight, how)
            for s in steps
            if (how := s.kernel.pack)
        }
        if trial:
            rows = {name: job for name, job in jobs.items() if job.packing.apart}
            for name, job in rows.items():
                arrays[name] = self.file.tensor(job.tensor)
                del jobs[name]
        keep = self.options.keep_packed and not trial
        watch = self.options.progress.packed
        self._packed, self._not_kept = packed_weights(
            jobs, self.file, self.team, watch, keep, ready=self._packed
        )
        arrays |= self._packed
        _drop_unused(arrays, steps)
        for name, array in arrays.items():
            arrays[name] = np.ascontiguousarray(array)

    def step(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]],
        wanted: Sequence[int] = (),
    ) -> Array:
        """Run at most `limits` tokens; logits float32 [wanted, vocab] of the tokens asked for.

        Each token has a position and belongs to one or more sequences; it sees the cells of its
        first sequence up to its own position. The logits are valid until the next step.
        """
        with self._stepped(tokens, positions, sequences, wanted) as ready:
            return self._finite(ready.logits[: len(wanted)], positions, wanted)

    @property
    def finds_likeliest(self) -> bool:
        """Whether `likeliest` can be asked: whether a device has the logits."""
        return isinstance(self.ready, Hybrid) and self.ready.greedy is not None

    def likeliest(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]],
        wanted: Sequence[int],
    ) -> list[Likeliest]:
        """As `step`, but the logits stay on the device: what it finds in those of each token."""
        with self._stepped(tokens, positions, sequences, wanted) as ready:
            assert isinstance(ready, Hybrid)
            assert ready.greedy is not None
            found = ready.greedy.of(len(wanted))
            for row, one in enumerate(found):
                if not math.isfinite(one.log_sum):
                    raise self._not_finite(positions[wanted[row]])
            return found

    @contextmanager
    def _stepped(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]],
        wanted: Sequence[int],
    ) -> Iterator[Plan | Hybrid]:
        """A step that has run; its tokens are held if nothing goes wrong until its end."""
        if (ready := self._ready(len(tokens))) is None:
            raise ModelError(f"{self.file.path}: the model was closed")
        if not self._stepping.acquire(blocking=False):
            raise RuntimeError("this engine is running a step in another thread: one at a time")
        try:
            check_step(self.config, self.limits, tokens, positions, sequences, wanted)
            count, outputs = len(tokens), len(wanted)
            cells = self.cells.place(positions, sequences)
            try:
                arrays = ready.inputs
                arrays["tokens"][:count] = tokens
                arrays["positions"][:count] = positions
                arrays["cells"][:count] = cells
                arrays["spans"][:count] = self.cells.spans(positions, sequences)
                arrays["rows"][:outputs] = wanted
                ready.resize(tokens=count, outputs=outputs)
                if self.offload:
                    self.offload.begin(tokens, positions)
                ready.run(self.team)
                while self.offload and not self.offload.came():
                    ready.run(self.team)
                yield ready
            except BaseException:  # Ctrl-C too: what was not computed to its end is not held
                self.cells.take_back(positions, sequences)
                raise
        finally:
            self._stepping.release()

    def _finite(self, logits: Array, positions: Sequence[int], wanted: Sequence[int]) -> Array:
        if not np.isfinite(logits.sum()) and not np.isfinite(logits).all():
            row, token = np.argwhere(~np.isfinite(logits))[0]
            raise self._not_finite(positions[wanted[row]], f"token {token} ")
        return logits

    def _not_finite(self, position: int, which: str = "") -> NumericalError:
        return NumericalError(
            f"the model's logits are not finite ({which}after position {position}): are there NaN"
            " or infinity in its weights?"
        )

    def evaluate(
        self,
        tokens: Sequence[int],
        start: int,
        sequence: int = 0,
        every: bool = False,
        each: Callable[[Array], None] | None = None,
    ) -> Array:
        """Run a stretch of one sequence from position `start`, in chunks that fit.

        Gives the logits of the last token, float32 [vocab]; with `every`, `each` is called with
        the logits [n, vocab] of all tokens in turn.
        """
        if not len(tokens):
            raise ModelError("there is no token to evaluate")
        chunk = self.limits["outputs"] if every else self.limits["tokens"]
        logits = np.empty((0, self.config.vocab), np.float32)
        for first in range(0, len(tokens), chunk):
            part = tokens[first : first + chunk]
            last = first + len(part) == len(tokens)
            wanted = range(len(part)) if every else [len(part) - 1] if last else []
            where = range(start + first, start + first + len(part))
            logits = self.step(part, where, [(sequence,)] * len(part), wanted)
            if each:
                each(logits)
        return np.asarray(logits[-1])


def _drop_unused(arrays: dict[str, Array], steps: Sequence[Step]) -> None:
    """Let go of arrays that no step touches, such as the file's weights that were packed."""
    used = set[str]().union(*map(names_in, steps))
    for name in [name for name in arrays if name not in used]:
        del arrays[name]
