"""Matrix products by the device's own library, where no kernel of ours does them."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kernels.cuda.runtime.launch import Launch
from kernels.provenance import digest_of, fingerprint_of
from reference.op import Argument, Shape, parse_signature


@dataclass(frozen=True, slots=True)
class Factors:
    """out = x W^T: addresses of x [tokens, hidden] and weight [rows, hidden], bfloat16, and of out
    [tokens, rows], float32; all C-contiguous."""

    x: int
    weight: int
    out: int
    tokens: int
    hidden: int
    rows: int


@dataclass(frozen=True)
class Product:
    """bfloat16 times bfloat16, added in float32 in whatever order the library likes.

    `signature` is in the reference's grammar, e.g. "x: u16[n k], weight: u16[m k] -> out: f32[n
    m]"; it is done only `when(shape)`.
    """

    signature: str
    when: Callable[[Shape], bool]

    def __post_init__(self) -> None:
        kinds, axes = zip(*((a.dtype, a.axes) for a in self.arguments), strict=True)
        (tokens, hidden), (rows, _), _ = axes
        assert kinds == ("u16", "u16", "f32"), self.signature
        assert axes == ((tokens, hidden), (rows, hidden), (tokens, rows)), self.signature

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        inputs, outputs = parse_signature(self.signature)
        return inputs + outputs

    @cached_property
    def digest(self) -> str:
        """sha256 of its signature and of the code that calls the library."""
        source = digest_of("kernels.cuda.runtime.product", "kernels.cuda.runtime.cublas")
        return hashlib.sha256(f"{source}\0{self.signature}".encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """sha256 of this and of the function that tells when."""
        return hashlib.sha256((self.digest + fingerprint_of(self.when)).encode()).hexdigest()

    def factors(self, arguments: Mapping[str, Any], shape: Shape) -> Factors:
        """The operands: `arguments` has the address of each array."""
        x, weight, out = self.arguments
        (tokens, hidden), (rows, _) = x.axes, weight.axes
        return Factors(
            arguments[x.name], arguments[weight.name], arguments[out.name],
            shape[tokens], shape[hidden], shape[rows],
        )  # fmt: skip


Stage = Launch | Product
