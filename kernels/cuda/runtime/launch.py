"""The calling convention of CUDA kernels: a `__global__` function and how many threads run it.

Its parameters follow a signature in the reference's grammar: a pointer for each array, the value of
each scalar, in the signature's order; then each named size, as an int, in the order in which they
first appear. Arrays are C-contiguous and begin at 16 bytes.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from kernels.cuda.formats import grids
from kernels.cuda.runtime.config import HEADER, NO_CONSTANTS, Config
from kernels.provenance import fingerprint_of
from reference.op import DTYPES, Argument, Shape, parse_signature

FOLDER = Path(__file__).parents[1]
THREADS, MOST_THREADS, WARP = 256, 1024, 32  # of a block, as a rule and at most; of a warp
MADE = {"grids.cuh": grids.header}  # what has no file
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
_WAIT = re.compile(r"wait_for_previous(<\w+>)?\(\);")
C_TYPES = {
    "f32": "float", "f64": "double", "i8": "int8_t", "u8": "uint8_t", "u16": "uint16_t",
    "u32": "uint32_t", "i32": "int32_t", "i64": "int64_t", "u64": "uint64_t", "format": "uint8_t",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grid:
    """`blocks` [x, y, z] of `threads` each, with so many bytes of dynamic `shared` memory per
    block."""

    blocks: tuple[int, int, int]
    threads: int
    shared: int = 0

    @property
    def empty(self) -> bool:
        return 0 in self.blocks


ConfiguredGrid = Callable[[Shape, Config], Grid]  # of a launch whose constants have knobs


def rows(axis: str, threads: int) -> Callable[[Shape], Grid]:
    """A block for each item of an axis."""
    return lambda shape: Grid((shape[axis], 1, 1), threads)


def items(*axes: str, each: int = 1, threads: int = THREADS) -> Callable[[Shape], Grid]:
    """A thread for every `each` elements of an array with these axes."""

    def grid(shape: Shape) -> Grid:
        wanted = -(-prod(shape[axis] for axis in axes) // each)
        return Grid((-(-wanted // threads), 1, 1), threads)

    return grid


def across(axis: str, width: str, threads: int = THREADS) -> Callable[[Shape], Grid]:
    """A thread for each element of an array [axis, width]: x is the row, y a part of it."""
    return lambda shape: Grid((shape[axis], -(-shape[width] // threads), 1), threads)


def fours(shape: Shape) -> Grid:
    """A block for each token: as many threads as its row has fours, in whole warps, up to 1024."""
    warps = -(-shape["hidden"] // (4 * WARP))
    return Grid((shape["tokens"], 1, 1), min(MOST_THREADS, max(1, warps) * WARP))


def halves_of_heads(shape: Shape) -> Grid:
    """A thread for each two elements of a token's heads."""
    halves = shape["heads"] * -(-shape["head_dim"] // 2)
    return Grid((shape["tokens"], -(-halves // THREADS), 1), THREADS)


def one_block(shape: Shape) -> Grid:
    """One block of as many threads as possible."""
    return Grid((1, 1, 1), MOST_THREADS)


@cache
def ours() -> dict[str, Path]:
    """Sources and headers of these folders, by their unique names."""
    return {path.name: path for path in sorted(FOLDER.rglob("*.cu*"))}


@cache
def sources(name: str, folder: Path) -> tuple[tuple[str, str], ...]:
    """A file of a folder and all that it includes but its constants, as (name, text), sorted;
    third-party files may include ours."""
    where = folder / name if (folder / name).exists() else ours().get(name, folder / name)
    text = MADE[name]() if name in MADE else where.read_text()
    found = {name: text}
    for included in _INCLUDE.findall(text):
        if included != HEADER:
            found |= dict(sources(included, folder))
    return tuple(sorted(found.items()))


@dataclass(frozen=True)
class Launch:
    """A function of NAME.cu, compiled for a `format` where it has one: the word FORMAT in its
    source. `grid(shape)`, or `grid(shape, config)` where there are knobs, gives the launch
    configuration for the sizes that the signature names; `folder` contains the source and its
    includes, `config` the constants that they include as config.cuh."""

    source: str
    function: str
    signature: str
    grid: Callable[..., Grid]
    format: str = ""
    folder: Path = FOLDER
    config: Config = NO_CONSTANTS

    def at(self, shape: Shape) -> Grid:
        """The launch configuration at these sizes."""
        return self.grid(shape, self.config) if self.config.knobs else self.grid(shape)

    @property
    def name(self) -> str:
        return f"{self.function}[{self.format}]" if self.format else self.function

    @cached_property
    def arguments(self) -> tuple[Argument, ...]:
        inputs, outputs = parse_signature(self.signature)
        return inputs + outputs

    @cached_property
    def sizes(self) -> tuple[str, ...]:
        """The named sizes, in the order of the function's parameters."""
        axes = (axis for argument in self.arguments for axis in argument.axes)
        return tuple(dict.fromkeys(axis for axis in axes if axis.isidentifier()))

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The C types of its parameters."""
        found = [C_TYPES[a.dtype] + " *" * bool(a.axes) for a in self.arguments]
        return (*found, *["int"] * len(self.sizes))

    @cached_property
    def defines(self) -> tuple[str, ...]:
        """Compiler options."""
        return (f"-DFORMAT={self.format.lower()}",) if self.format else ()

    @cached_property
    def waits(self) -> bool:
        """Whether it waits for its predecessor before it touches what that may have written, so
        that it may be launched before that has ended: all functions of a source do, or none."""
        return any(_WAIT.search(text) for text in self.files.values())

    @cached_property
    def lasting(self) -> frozenset[str]:
        """The arguments that no kernel of a step writes: weights, which it may read before."""
        return frozenset(a.name for a in self.arguments if a.name.startswith("weight"))

    @property
    def files(self) -> dict[str, str]:
        """Its source and all that it includes, by name."""
        made = {HEADER: self.config.header} if self.config.constants else {}
        return dict(sources(self.source, self.folder)) | made

    @cached_property
    def digest(self) -> str:
        """sha256 of its source with all it includes, its signature and its format."""
        return self._sha256(self.function, self.signature, self.format)

    @cached_property
    def source_digest(self) -> str:
        """sha256 of what is compiled: its source with all it includes, for its format."""
        return self._sha256(self.source, self.format)

    def _sha256(self, *own: str) -> str:
        words = [*(word for file in self.files.items() for word in file), *own]
        return hashlib.sha256("\0".join(words).encode()).hexdigest()

    @property
    def fingerprint(self) -> str:
        """sha256 of this and of the function that gives its grid."""
        return hashlib.sha256((self.digest + fingerprint_of(self.grid)).encode()).hexdigest()

    def values(self, arguments: Mapping[str, Any], shape: Shape) -> list[Any]:
        """The values of its parameters: `arguments` has the address of each array and each
        scalar."""
        found = [
            np.uint64(arguments[a.name]) if a.axes else DTYPES[a.dtype](arguments[a.name])
            for a in self.arguments
        ]
        return [*found, *(np.int32(shape[axis]) for axis in self.sizes)]
