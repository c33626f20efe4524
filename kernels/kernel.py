"""A kernel: one op, for one target, in one variant and format, and what it asks for."""

from collections.abc import Callable
from dataclasses import dataclass

from kernels.cpu.formats.packing import Packing
from kernels.cpu.isa import amx
from kernels.cpu.runtime.share import Share
from kernels.knob import Knob
from kernels.provenance import cpu_features
from reference.op import Op, Shape
from reference.table import OPS

NUMERICS = ("exact", "fast")
PROMPT = 32  # tokens from which a step is a prompt's, for which there are kernels of their own


def any_shape(shape: Shape) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Kernel:
    """One row of the kernels' table.

    - `requires`: CPU features by LLVM's names; `takes(shape)`: the sizes it can do.
    - `pack`: how the op's weight, uint8 [rows, row_bytes], becomes the layout the share streams.
    - `activations` "int8": the share reads quantised activations (q, scale, total) instead of x,
      and the op quantise_activations has to run before it; "int8_256": they have one scale for 256
      elements, and that op is quantise_activations_256; "bf16": it rounds x and the weight;
      "f16x2", "bf16x3": each element is a sum of two float16, or three bfloat16. Bounds are by
      these (Op.rounded, Op.bounds).
    - `numerics` "fast": it rounds more than the default numerics do, and serves where asked for;
      `fewest`: in steps of at least so many tokens.
    - `in_place`: output by input, where the share updates the input's own memory.
    - `scratch(shape)`: float32 elements of the memory that the share's argument `scratch` is.
    - `then`: a second share, run once every thread is done with the first.
    - `knobs`: what the share's argument `tuning` has the values of; none changes a bit.
    - `splits` "tokens": a thread's work is `part(tokens, thread, n_threads)` and all it reads or
      writes of other tokens is what earlier nodes wrote for every token.
    """

    op: str
    variant: str
    share: Share
    format: str | None = None
    requires: frozenset[str] = frozenset()
    takes: Callable[[Shape], bool] = any_shape
    pack: Packing | None = None
    activations: str = "float32"
    numerics: str = "exact"
    fewest: int = 1
    in_place: tuple[tuple[str, str], ...] = ()
    scratch: Callable[[Shape], int] | None = None
    then: Share | None = None
    splits: str = ""
    knobs: tuple[Knob, ...] = ()
    target: str = "cpu"

    @property
    def spec(self) -> Op:
        return OPS[self.op]

    @property
    def name(self) -> str:
        """E.g. linear/cpu/generic/Q4_0: what certificates and messages say."""
        return "/".join(filter(None, (self.op, self.target, self.variant, self.format)))

    @property
    def shares(self) -> tuple[Share, ...]:
        """What runs, one after the other: the kernel's share, and the one that follows if any."""
        return (self.share, self.then) if self.then else (self.share,)

    def conditions(self) -> str:
        """All else that its row says, for the certificate."""
        takes = f"{self.takes.__module__}.{self.takes.__qualname__}"
        packed = repr(self.pack) if self.pack else ""
        scratch = f"{self.scratch.__module__}.{self.scratch.__qualname__}" if self.scratch else ""
        then = self.then.fingerprint if self.then else ""
        rounds = self.activations, self.numerics, self.fewest
        rest = *rounds, self.in_place, scratch, then, self.splits
        return repr((sorted(self.requires), takes, packed, *rest, self.knobs))

    def missing(self) -> list[str]:
        """What this machine lacks for it."""
        lacking = self.requires - cpu_features()
        if not lacking and self.requires & amx.FEATURES and not amx.request():
            return ["the system's permission to use amx-tile"]
        return sorted(lacking)
