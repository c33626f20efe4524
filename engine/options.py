"""How a model is loaded, and who watches."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import TypedDict

from engine.config import ModelError
from engine.gpu.parts import ALL
from engine.offload.budget import parse_bytes
from engine.passes import Pass
from engine.policies.minference import MInference
from engine.policies.table import AnyPolicy
from engine.progress import ProgressCallback
from engine.sparsity import MODES
from kernels.certify import Certified
from kernels.cpu.runtime.team import MOST_THREADS
from kernels.kernel import NUMERICS
from reference.cache.kv_write import FORMATS_OF_CACHE
from reference.formats.kivi import KIVI

MOST_SEQUENCES = 2**10
DEVICES = ("cpu", "cuda")
WHOLE = "passes", "kv_policy", "prompt_attention", "foretells"  # what wants all in memory


@dataclass(frozen=True, slots=True)
class Progress:
    """Whoever loads a model may progress: certification by trial, weights by bytes ready, and
    knobs by passes through the weights."""

    certified: Certified | None = None
    packed: ProgressCallback | None = None
    tuned: ProgressCallback | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """What runs the model.

    - `threads` 0 means one per core that it may use; `pinned`: each keeps to a core of its own.
    - `device` "cuda" has a GPU run the last `gpu_layers` blocks, with more than there are the rest
      too, and -1 means that; what it does not run is left to the threads. So are the experts of the
      first `n_cpu_moe` blocks, with `cpu_moe` those of all.
    """

    threads: int = 0
    pinned: bool = False
    device: str = "cpu"
    gpu_layers: int = ALL
    n_cpu_moe: int = 0
    cpu_moe: bool = False

    def check_device(self) -> None:
        """Raise ModelError for what there is not among these."""
        _check_whole(self, {"gpu_layers": ALL, "n_cpu_moe": 0}, {})
        if not isinstance(self.threads, Integral) or not 0 <= self.threads <= MOST_THREADS:
            raise ModelError(f"threads must be 0 to {MOST_THREADS}, got {self.threads}")
        if self.device not in DEVICES:
            raise ModelError(f"device is {self.device!r}: want {' or '.join(DEVICES)}")
        for name in ("gpu_layers", "n_cpu_moe", "cpu_moe"):
            value = getattr(self, name)
            if self.device == "cpu" and value > 0:
                told = "given" if value is True else value
                raise ModelError(f"{name} is {told}, but the device is the CPU")

    def cpu_blocks(self, blocks: int) -> int:
        """How many of a model's blocks are the CPU's, if the GPU has kernels for the others."""
        if self.device == "cpu":
            return blocks
        return 0 if self.gpu_layers == ALL else max(0, blocks - self.gpu_layers)

    def cpu_experts(self, blocks: int) -> int:
        """Of how many of a model's blocks, the first ones, experts are the CPU's."""
        return blocks if self.cpu_moe else min(self.n_cpu_moe, blocks)


@dataclass(frozen=True, kw_only=True)
class SparseOptions:
    """What is done with the neurons of a model that has predictors.

    - `sparse`: "on" skips neurons in every block, "off" in none, "auto" in those where it pays;
      `threshold` instead of the file's; `union`: a neuron that one token of a step needs serves
      them all, so that what a token gives depends on its company.
    - `vram_budget`: GiB of a GPU's memory for parts of such a model, -1 for what is free, 0 for
      none; without a GPU as the `device` the CPU computes them too; `reset_gpu_index` places
      neurons anew, `disable_gpu_index` leaves all with the CPU.
    - `activation`: statistics that say which neurons go there or, with a `ram_budget`, which stay
      in memory for good.
    """

    sparse: str = "auto"
    threshold: float | None = None
    union: bool = False
    vram_budget: float = 0
    activation: Path | None = None
    reset_gpu_index: bool = False
    disable_gpu_index: bool = False

    def check_sparse(self) -> None:
        """Raise ModelError for what there is not among these."""
        if self.sparse not in MODES:
            raise ModelError(f"sparse is {self.sparse!r}: want {', '.join(MODES)}")


@dataclass(frozen=True, kw_only=True)
class OffloadOptions:
    """Weights that are read from disk while the model runs.

    - `ram_budget`: most memory of the process, such as "600MiB", weights that do not fit being read
      all along; 0: no budget.
    - `neuron_window`: most steps that a neuron of a sparse block or an expert of a mixture stays in
      memory unused, None: as long as there is room; `neuron_bundles`: a neuron's rows are side by
      side on disk, one read, or else each with its matrix.
    - `beside_budget`: another model of this process has a `ram_budget`, which this one is part of.
    """

    ram_budget: str | int = 0
    neuron_window: int | None = None
    neuron_bundles: bool = True
    beside_budget: bool = False

    def check_offload(self) -> None:
        """Raise ModelError for what there is not among these."""
        if self.ram_budget:
            parse_bytes(self.ram_budget)
        if self.neuron_window is not None and self.neuron_window < 0:
            raise ModelError(f"neuron_window must be at least 0, got {self.neuron_window}")

    @property
    def compiles_apart(self) -> bool:
        """Whether a child process compiles kernels, since this one's memory is counted."""
        return bool(self.ram_budget) or self.beside_budget


@dataclass(frozen=True, kw_only=True)
class Options(OffloadOptions, SparseOptions, DeviceOptions):
    """How a model is loaded: what runs it (DeviceOptions), what becomes of its neurons
    (SparseOptions), what is read from disk (OffloadOptions), and

    - `context`: cells of the KV cache (0: the model's own context length, at most 4096).
    - `batch`: most tokens of one step; longer prompts go in chunks.
    - `sequences`: most sequences at once; `outputs`: most tokens of a step that give logits.
    - `states`: of a recurrent model, how many states are kept beside those that sequences end with,
      so that the last tokens of a text can be dropped; drafts have one token less at most.
    - `kv_format`: of the KV cache, one of kv_write's FORMATS_OF_CACHE, or KIVI2: two bits for all
      but the latest tokens of a text, `kv_residual` of them and up to 31 more.
    - `kv_policy`: which cells are kept once a prompt has been read, such as SnapKV(capacity=1024);
      or which are read by each token, Quest(budget=1024), or by which heads, DuoAttention(...); or
      shared by blocks, MiniCache().
    - `prompt_attention`: prompts are read by sparse attention, such as MInference(columns=1000).
    - `numerics`: "fast" may round weights, and what they multiply, to bfloat16: those of floats
      always, those in blocks, queries, keys and values in steps of 32 tokens and more; "exact" does
      not, and gives the same bits on any CPU that does not fall back to `scalar`.
    - `strict`: stop where a kernel fails its trial; `variant`: prefer kernels of this variant.
    - `tune`: measure the knobs of the CPU's kernels, once per machine and sizes of a large model.
    - `background`: try the laws of the CPU's kernels while the model is loaded, in another process
      that runs when nothing else wants a core.
    - `keep_packed`: keep the packed weights in the cache folder, as large as the file once more, so
      that the next load maps them.
    - `passes`: what is done to the model's graph, one after the other, before kernels are chosen.
    - `foretells`: load the file's block that foretells a token as well, for drafts; on the CPU,
      with all weights in memory.
    """

    context: int = 0
    batch: int = 512
    sequences: int = 8
    outputs: int = 32
    states: int = 8
    kv_format: str = "F16"
    kv_residual: int = 128
    kv_policy: AnyPolicy | None = None
    prompt_attention: MInference | None = None
    numerics: str = "exact"
    strict: bool = False
    variant: str | None = None
    tune: bool = True
    background: bool = False
    keep_packed: bool = False
    passes: tuple[Pass, ...] = ()
    foretells: bool = False
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        _check_whole(
            self,
            {"context": 0, "batch": 1, "sequences": 1, "outputs": 1, "states": 0, "kv_residual": 1},
            {"context": 2**24, "batch": 2**16, "sequences": MOST_SEQUENCES, "states": 2**24},
        )
        self.check_device()
        self.check_sparse()
        self.check_offload()
        if self.kv_format not in (known := (*FORMATS_OF_CACHE, KIVI)):
            raise ModelError(f"kv_format is {self.kv_format!r}: want {', '.join(known)}")
        if self.packs:
            self._without(
                f"kv_format {KIVI}", "ram_budget", "vram_budget", "kv_policy", "foretells",
                "prompt_attention",
            )  # fmt: skip
        if self.numerics not in NUMERICS:
            raise ModelError(f"numerics is {self.numerics!r}: want {' or '.join(NUMERICS)}")
        if self.device != "cpu":
            if self.vram_budget and (self.gpu_layers != ALL or self.keep_packed):
                name = "keep_packed" if self.keep_packed else "gpu_layers"
                raise ModelError(f"on a GPU vram_budget and {name} exclude each other")
            self._without(f"device {self.device}", "ram_budget", "passes", "foretells")
        if self.ram_budget:
            self._without("ram_budget", "vram_budget", *WHOLE)
        if self.foretells:
            self._without("a model's own draft block", "kv_policy", "prompt_attention")
        if self.kv_policy:
            self._without("kv_policy", "prompt_attention")
        if not isinstance(self.kv_policy, AnyPolicy | None):
            raise ModelError(f"kv_policy is {self.kv_policy!r:.60}: want a SnapKV or the like")
        if not isinstance(self.prompt_attention, MInference | None):
            raise ModelError(
                f"prompt_attention is {self.prompt_attention!r:.60}: want a MInference"
            )
        if self.activation and not (self.ram_budget or self.vram_budget):
            raise ModelError(
                "activation is for the neurons that a ram_budget or vram_budget keeps: set one"
            )

    def _without(self, what: str, *names: str) -> None:
        """Raise ModelError if one of these is asked for, too."""
        for name in names:
            if getattr(self, name):
                raise ModelError(f"{what} and {name} exclude each other")

    @property
    def packs(self) -> bool:
        """Whether all but the latest keys and values are in two bits."""
        return self.kv_format == KIVI

    @property
    def cell_format(self) -> str:
        """The format of a cell of its own."""
        return "F16" if self.packs else self.kv_format

    def for_draft_model(self) -> "Options":
        """For the draft model beside this one: without what is said of a file's neurons, of the
        process's memory and of a graph."""
        return replace(
            self, ram_budget=0, beside_budget=bool(self.ram_budget), gpu_layers=ALL, n_cpu_moe=0,
            cpu_moe=False, sparse="auto", background=False, threshold=None, vram_budget=0,
            activation=None, passes=(), kv_policy=None, prompt_attention=None, foretells=False,
            kv_format=self.cell_format,
        )  # fmt: skip


def _check_whole(options: object, least: Mapping[str, int], most: Mapping[str, int]) -> None:
    """Raise ModelError for what is no whole number, or beyond these."""
    for name, bound in least.items():
        given = getattr(options, name)
        if not isinstance(given, Integral):
            raise ModelError(f"{name} is {given!r}: want a whole number")
        if (value := int(given)) < bound:
            raise ModelError(f"{name} must be at least {bound}, got {value}")
        if name in most and value > most[name]:
            raise ModelError(f"{name} must be at most {most[name]}, got {value}")


class Fields(TypedDict, total=False):
    """The fields of Options by name, as `Engine.load` takes them."""

    context: int
    batch: int
    sequences: int
    outputs: int
    states: int
    threads: int
    pinned: bool
    device: str
    gpu_layers: int
    n_cpu_moe: int
    cpu_moe: bool
    kv_format: str
    kv_residual: int
    kv_policy: AnyPolicy | None
    prompt_attention: MInference | None
    numerics: str
    strict: bool
    variant: str | None
    tune: bool
    background: bool
    keep_packed: bool
    passes: tuple[Pass, ...]
    foretells: bool
    sparse: str
    threshold: float | None
    union: bool
    vram_budget: float
    activation: Path | None
    reset_gpu_index: bool
    disable_gpu_index: bool
    ram_budget: str | int
    neuron_window: int | None
    neuron_bundles: bool
    beside_budget: bool
    progress: Progress
