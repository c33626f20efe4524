"""Options for loading a model."""

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
NEEDS_ALL_WEIGHTS = (
    "passes",
    "kv_policy",
    "prompt_attention",
)  # options that need all weights in memory


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress callbacks of loading: certification, packing of weights (bytes), and tuning (passes
    over the weights)."""

    certified: Certified | None = None
    packed: ProgressCallback | None = None
    tuned: ProgressCallback | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Devices.

    - `threads`: 0 means one per available core; `pinned`: each thread is bound to a core.
    - `device`: "cuda" runs the last `gpu_layers` blocks on a GPU; more than the model has, or -1,
      offloads the output layer too. The rest runs on the CPU, as do the experts of the first
      `n_cpu_moe` blocks, or of all with `cpu_moe`.
    """

    threads: int = 0
    pinned: bool = False
    device: str = "cpu"
    gpu_layers: int = ALL
    n_cpu_moe: int = 0
    cpu_moe: bool = False

    def check_device(self) -> None:
        """Raise `ModelError` for invalid device options."""
        _check_integers(self, {"gpu_layers": ALL, "n_cpu_moe": 0}, {})
        if not isinstance(self.threads, Integral) or not 0 <= self.threads <= MOST_THREADS:
            raise ModelError(f"threads must be 0 to {MOST_THREADS}, got {self.threads}")
        if self.device not in DEVICES:
            raise ModelError(f"device is {self.device!r}: want {' or '.join(DEVICES)}")
        for name in ("gpu_layers", "n_cpu_moe", "cpu_moe"):
            value = getattr(self, name)
            if self.device == "cpu" and value > 0:
                shown = "set" if value is True else value
                raise ModelError(f"{name} is {shown}, but the device is the CPU")

    def cpu_blocks(self, blocks: int) -> int:
        """Number of blocks that run on the CPU, if the GPU has kernels for the others."""
        if self.device == "cpu":
            return blocks
        return 0 if self.gpu_layers == ALL else max(0, blocks - self.gpu_layers)

    def cpu_experts(self, blocks: int) -> int:
        """Number of blocks, from the first, whose experts run on the CPU."""
        return blocks if self.cpu_moe else min(self.n_cpu_moe, blocks)


@dataclass(frozen=True, kw_only=True)
class SparseOptions:
    """Sparse inference, for models with activation predictors.

    - `sparse`: "on" skips inactive neurons in every block, "off" in none, "auto" where it is
      faster; `threshold` overrides the file's; `union`: a neuron active for one token of a step is
      computed for all, so that a token's results depend on its batch.
    - `vram_budget`: GiB of GPU memory for such a model's neurons, -1 for all that is free, 0 for
      none; without a GPU as `device` the CPU computes both parts. `reset_gpu_index` recomputes the
      placement, `disable_gpu_index` leaves all neurons on the CPU.
    - `activation`: activation statistics; they select the neurons for the GPU or, with a
      `ram_budget`, those pinned in memory.
    """

    sparse: str = "auto"
    threshold: float | None = None
    union: bool = False
    vram_budget: float = 0
    activation: Path | None = None
    reset_gpu_index: bool = False
    disable_gpu_index: bool = False

    def check_sparse(self) -> None:
        """Raise `ModelError` for invalid sparsity options."""
        if self.sparse not in MODES:
            raise ModelError(f"sparse is {self.sparse!r}: want {', '.join(MODES)}")


@dataclass(frozen=True, kw_only=True)
class OffloadOptions:
    """Offloading: weights that are streamed from disk while the model runs.

    - `ram_budget`: memory limit of the process, such as "600MiB"; weights that do not fit are
      streamed. 0: no limit.
    - `neuron_window`: steps that an unused neuron of a sparse block, or an expert, stays in memory;
      None: as long as there is room. `neuron_bundles`: store a neuron's rows side by side on disk,
      for one read; else each with its matrix.
    - `beside_budget`: another model of this process has a `ram_budget`, which includes this one.
    """

    ram_budget: str | int = 0
    neuron_window: int | None = None
    neuron_bundles: bool = True
    beside_budget: bool = False

    def check_offload(self) -> None:
        """Raise `ModelError` for invalid offload options."""
        if self.ram_budget:
            parse_bytes(self.ram_budget)
        if self.neuron_window is not None and self.neuron_window < 0:
            raise ModelError(f"neuron_window must be at least 0, got {self.neuron_window}")

    @property
    def compiles_apart(self) -> bool:
        """Whether kernels are compiled in a child process, to save this one's memory."""
        return bool(self.ram_budget) or self.beside_budget


@dataclass(frozen=True, kw_only=True)
class Options(OffloadOptions, SparseOptions, DeviceOptions):
    """Options for loading a model: DeviceOptions, SparseOptions, OffloadOptions, and

    - `context`: cells of the KV cache (0: the model's context length, at most 4096).
    - `batch`: most tokens per step; longer prompts are prefilled in chunks.
    - `sequences`: most concurrent sequences; `outputs`: most tokens per step that give logits.
    - `states`: of a recurrent model, past states kept besides the sequences' current ones, so that
      the last tokens can be rolled back; drafts have at most one token less.
    - `kv_format`: format of the KV cache, one of kv_write's FORMATS_OF_CACHE, or KIVI2: two bits
      except for the latest `kv_residual` tokens of a text (and up to 31 more).
    - `kv_policy`: KV cache policy: eviction after prefill, such as SnapKV(capacity=1024); page
      selection per token, Quest(budget=1024); per-head windows, DuoAttention(...); or sharing
      between blocks, MiniCache().
    - `prompt_attention`: sparse attention for prefill, such as MInference(columns=1000).
    - `numerics`: "fast" may round weights and activations to bfloat16: float weights always;
      quantized ones, queries, keys and values in steps of at least 32 tokens. "exact" does not, and
      gives the same bits on any CPU that does not fall back to `scalar`.
    - `strict`: fail if a kernel fails its trial; `variant`: prefer kernels of this variant.
    - `tune`: measure the CPU kernels' knobs, once per machine and sizes of a large model.
    - `background`: test the laws of the CPU's kernels in an idle-priority process while the model
      is loaded.
    - `keep_packed`: keep packed weights in the cache folder (as large as the file), for the next
      load to map.
    - `passes`: graph passes, applied in order before kernels are selected.
    - `mtp`: load the file's multi-token-prediction blocks, for drafts; with a `ram_budget`
      they stay in memory.
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
    mtp: bool = False
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        _check_integers(
            self,
            {"context": 0, "batch": 1, "sequences": 1, "outputs": 1, "states": 0, "kv_residual": 1},
            {"context": 2**24, "batch": 2**16, "sequences": MOST_SEQUENCES, "states": 2**24},
        )
        self.check_device()
        self.check_sparse()
        self.check_offload()
        if self.kv_format not in (known := (*FORMATS_OF_CACHE, KIVI)):
            raise ModelError(f"kv_format is {self.kv_format!r}: want {', '.join(known)}")
        if self.packs_kv:
            self._exclude(
                f"kv_format {KIVI}", "ram_budget", "vram_budget", "kv_policy", "mtp",
                "prompt_attention",
            )  # fmt: skip
        if self.numerics not in NUMERICS:
            raise ModelError(f"numerics is {self.numerics!r}: want {' or '.join(NUMERICS)}")
        if self.device != "cpu":
            if self.vram_budget and (self.gpu_layers != ALL or self.keep_packed):
                name = "keep_packed" if self.keep_packed else "gpu_layers"
                raise ModelError(f"on a GPU vram_budget and {name} exclude each other")
            self._exclude(f"device {self.device}", "ram_budget", "passes")
        if self.ram_budget:
            self._exclude("ram_budget", "vram_budget", *NEEDS_ALL_WEIGHTS)
        if self.mtp:
            self._exclude("a model's own draft block", "kv_policy", "prompt_attention")
        if self.kv_policy:
            self._exclude("kv_policy", "prompt_attention")
        if not isinstance(self.kv_policy, AnyPolicy | None):
            raise ModelError(f"kv_policy must be a SnapKV etc., got {self.kv_policy!r:.60}")
        if not isinstance(self.prompt_attention, MInference | None):
            raise ModelError(
                f"prompt_attention must be an MInference, got {self.prompt_attention!r:.60}"
            )
        if self.activation and not (self.ram_budget or self.vram_budget):
            raise ModelError("activation needs a ram_budget or a vram_budget")

    def _exclude(self, what: str, *names: str) -> None:
        """Raise `ModelError` if one of these options is set as well."""
        for name in names:
            if getattr(self, name):
                raise ModelError(f"{what} and {name} exclude each other")

    @property
    def packs_kv(self) -> bool:
        """Whether the KV cache is quantized to two bits, except for the latest tokens."""
        return self.kv_format == KIVI

    @property
    def cell_format(self) -> str:
        """The KV cache format of a single cell."""
        return "F16" if self.packs_kv else self.kv_format

    def for_draft_model(self) -> "Options":
        """Options for the draft model: without those for the target's neurons, memory budget and
        graph."""
        return replace(
            self, ram_budget=0, beside_budget=bool(self.ram_budget), gpu_layers=ALL, n_cpu_moe=0,
            cpu_moe=False, sparse="auto", background=False, threshold=None, vram_budget=0,
            activation=None, passes=(), kv_policy=None, prompt_attention=None, mtp=False,
            kv_format=self.cell_format,
        )  # fmt: skip


def _check_integers(options: object, least: Mapping[str, int], most: Mapping[str, int]) -> None:
    """Raise `ModelError` for options that are not integers within these bounds."""
    for name, bound in least.items():
        given = getattr(options, name)
        if not isinstance(given, Integral):
            raise ModelError(f"{name} is {given!r}: want a whole number")
        if (value := int(given)) < bound:
            raise ModelError(f"{name} must be at least {bound}, got {value}")
        if name in most and value > most[name]:
            raise ModelError(f"{name} must be at most {most[name]}, got {value}")


class Fields(TypedDict, total=False):
    """The fields of Options, as keyword arguments of `Engine.load`."""

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
    mtp: bool
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
