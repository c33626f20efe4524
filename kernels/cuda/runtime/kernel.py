"""A CUDA kernel: one op in one variant and format, and what it has a device do."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from kernels.cuda.formats.packing import Bfloats, Codes, Planes
from kernels.cuda.runtime.current import current
from kernels.cuda.runtime.device import OLDEST, Device, DeviceError
from kernels.cuda.runtime.launch import Launch
from kernels.cuda.runtime.product import Product, Stage
from kernels.kernel import any_shape
from kernels.knob import Knob, Values
from kernels.provenance import fingerprint_of
from reference.op import Op, Shape
from reference.table import OPS


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """One row of the CUDA kernels' table; as `kernels.kernel.Kernel`, but for

    - `stages`: what runs, one after the other.
    - `pack`: how the op's weight, uint8 [rows, row_bytes], is laid out on the device.
    - `scratch(shape)`: float32 elements of the memory that the stages' argument `scratch` is.
    - `capability`: what the GPU has to have at least, e.g. 80 for sm_80.
    """

    op: str
    variant: str
    stages: tuple[Stage, ...]
    format: str | None = None
    takes: Callable[[Shape], bool] = any_shape
    pack: Planes | Codes | Bfloats | None = None
    activations: str = "float32"
    numerics: str = "exact"
    in_place: tuple[tuple[str, str], ...] = ()
    scratch: Callable[[Shape], int] | None = None
    capability: int = OLDEST
    splits: str = ""
    target: str = "cuda"

    @property
    def spec(self) -> Op:
        return OPS[self.op]

    @property
    def name(self) -> str:
        """E.g. linear/cuda/generic/Q4_0."""
        return "/".join(filter(None, (self.op, self.target, self.variant, self.format)))

    @property
    def launches(self) -> list[Launch]:
        """Its stages that are compiled."""
        return [stage for stage in self.stages if isinstance(stage, Launch)]

    @property
    def multiplies(self) -> bool:
        """Whether it needs the device's library."""
        return any(isinstance(stage, Product) for stage in self.stages)

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """Constants of its launches that may be chosen."""
        return tuple(dict.fromkeys(k for launch in self.launches for k in launch.config.knobs))

    def tuned(self, values: Values) -> "CudaKernel":
        """The same row with these values of its knobs: other machine code, whose certificate is its
        own. ValueError for a name that is no knob's."""
        if strange := values.keys() - {knob.name for knob in self.knobs}:
            raise ValueError(f"{self.name} has no knob {min(strange)}")
        return replace(
            self,
            stages=tuple(
                replace(stage, config=stage.config.choosing(values))
                if isinstance(stage, Launch)
                else stage
                for stage in self.stages
            ),
        )

    def lacks(self, device: Device) -> list[str]:
        """What it needs and a device lacks."""
        too_old = device.capability < self.capability
        library = self.multiplies and not device.library
        return [f"sm_{self.capability}"] * too_old + ["cuBLAS"] * library

    def missing(self) -> list[str]:
        """What it needs and this machine lacks."""
        try:
            return self.lacks(current())
        except DeviceError:
            return ["a GPU"]

    def conditions(self) -> str:
        """Everything in its row besides the stages, for the certificate."""
        takes = "" if self.takes is any_shape else fingerprint_of(self.takes)
        scratch = fingerprint_of(self.scratch) if self.scratch else ""
        rest = (self.activations, self.numerics, self.in_place, scratch, self.capability)
        return repr((takes, repr(self.pack), *rest))
