"""A CUDA kernel: one op in one variant and format, and the launches that it takes."""

from collections.abc import Callable
from dataclasses import dataclass

from kernels.cuda.current import current
from kernels.cuda.device import DeviceError
from kernels.cuda.launch import Launch
from kernels.cuda.packing import Codes, Planes
from kernels.kernel import any_shape
from kernels.provenance import fingerprint_of
from reference.op import Op, Shape
from reference.table import OPS

OLDEST = 75  # compute capability: Turing


@dataclass(frozen=True, slots=True)
class CudaKernel:
    """One row of the CUDA kernels' table; as `kernels.kernel.Kernel`, but for

    - `launches`: what runs, one after the other.
    - `pack`: how the op's weight, uint8 [rows, row_bytes], is laid out on the device.
    - `scratch(shape)`: float32 elements of the memory that the launches' argument `scratch` is.
    - `capability`: what the GPU has to have at least, e.g. 80 for sm_80.
    """

    op: str
    variant: str
    launches: tuple[Launch, ...]
    format: str | None = None
    takes: Callable[[Shape], bool] = any_shape
    pack: Planes | Codes | None = None
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

    def missing(self) -> list[str]:
        """What this machine lacks for it."""
        try:
            capability = current().capability
        except DeviceError:
            return ["a GPU"]
        return [f"sm_{self.capability}"] * (capability < self.capability)

    def conditions(self) -> str:
        """All that its row says beside the launches, for the certificate."""
        takes = "" if self.takes is any_shape else fingerprint_of(self.takes)
        scratch = fingerprint_of(self.scratch) if self.scratch else ""
        rest = (self.activations, self.numerics, self.in_place, scratch, self.capability)
        return repr((takes, repr(self.pack), *rest))
