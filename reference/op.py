"""The type of an op: its formula, its arguments, and how kernels of it are judged.

An op's file begins with its formula and ends with its `Op` row; `reference.table.OPS` lists the
rows. Everything downstream (argument checks, the kernels' calling convention, cases, `assay op`) is
derived from the row, so a shape is written down once.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np

from reference.formats import FORMATS
from reference.values import FINITE, LARGEST, NOT_FINITE, VALUES

Array = np.ndarray[Any, np.dtype[Any]]
Shape = Mapping[str, int]
Arguments = dict[str, Any]
Bound = Callable[[Arguments, dict[str, Array]], dict[str, Array]]
Rounded = Callable[[Arguments], tuple[Arguments, Array, Array]]
Apply = Callable[[Arguments], dict[str, Array]]  # runs a candidate on any legal inputs

DTYPES: dict[str, type] = {
    "f32": np.float32, "f64": np.float64, "i8": np.int8, "u8": np.uint8,
    "u16": np.uint16, "u32": np.uint32, "i32": np.int32, "i64": np.int64, "u64": np.uint64,
}  # fmt: skip

POLICIES = "element", "token", "domain"  # for NaN

_ARGUMENT = re.compile(r"(\w+): (\w+)(?:\[([\w/* ]+)\])?")


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of an op, e.g. `x: f32[tokens hidden]`; no axes means a scalar.

    An axis is a name, a number, `name/number` for an exact fraction or `name*name` for a product.
    The dtype `format` stands for bytes in the op's weight format: its last axis counts elements.
    """

    name: str
    dtype: str
    axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES and self.dtype != "format":
            raise ValueError(f"{self.name}: unknown dtype {self.dtype}")

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}" + (f"[{' '.join(self.axes)}]" if self.axes else "")

    def dims(self, shape: Shape, format: str | None = None) -> tuple[int, ...]:
        """The array's dimensions for named sizes; the last in bytes if the dtype is `format`."""
        dims = [size_of(axis, shape) for axis in self.axes]
        if self.dtype == "format":
            dims[-1] = FORMATS[format or "F32"].row_bytes(dims[-1])
        return tuple(dims)


def size_of(axis: str, shape: Shape) -> int:
    """The size of an axis expression for these sizes of its names."""
    if axis.isdigit():
        return int(axis)
    if "*" in axis:
        return math.prod(size_of(factor, shape) for factor in axis.split("*"))
    name, _, divisor = axis.partition("/")
    return shape[name] // int(divisor) if divisor else shape[name]


@cache
def parse_signature(text: str) -> tuple[tuple[Argument, ...], tuple[Argument, ...]]:
    """Parse `"x: f32[tokens hidden], eps: f64 -> out: f32[tokens hidden]"` to (inputs, outputs)."""
    sides = text.split(" -> ")
    if len(sides) != 2:
        raise ValueError(f"a signature has one ' -> ': {text!r}")
    inputs, outputs = (
        tuple(
            Argument(name, dtype, tuple(axes.split()))
            for name, dtype, axes in _ARGUMENT.findall(side)
        )
        for side in sides
    )
    for side, arguments in zip(sides, (inputs, outputs), strict=True):
        if ", ".join(map(str, arguments)) != side:
            raise ValueError(f"arguments read `name: dtype[axis axis], ...`, not {side!r}")
    return inputs, outputs


@dataclass(frozen=True, slots=True)
class Cost:
    """The least work of one call: bytes that must move and arithmetic operations."""

    bytes: float
    operations: float


LARGE = 2**20  # elements above which rows of a weight are sampled
SAMPLED = 64  # approximate number of nonzero rows of a large weight
HELD = 2**23  # approximate number of elements in nonzero matrices of a large weight


@dataclass(frozen=True, slots=True)
class Case:
    """One point of an op's domain; the same case always gives the same arguments.

    `largest` is the magnitude that values of the kind "huge" reach: the end of the op's domain.
    """

    shape: Shape
    values: str = "normal"
    seed: int = 0
    format: str | None = None
    largest: float = LARGEST

    def rng(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, *self.shape.values()])

    def array(self, rng: np.random.Generator, *dims: int) -> Array:
        """float32 values of this case's kind."""
        x = VALUES[self.values](rng, dims)
        return x * np.float32(self.largest) if self.values == "huge" else x

    def in_range(self) -> "Case":
        """This case, with ordinary numbers instead of infinities and NaN."""
        return self if self.values in FINITE else replace(self, values="normal")

    def finite(self, rng: np.random.Generator, *dims: int) -> Array:
        """`array` for an argument that must be finite: ordinary numbers replace the others."""
        return self.in_range().array(rng, *dims)

    def weight(self, rng: np.random.Generator, rows: int, elements: int) -> Array:
        """uint8 [rows, row_bytes] in this case's format, as files may hold them: some rows have the
        magnitude of its kind of values, and some scales are infinite or NaN if the kind is.

        In a large weight all rows but `sampled(rows, elements)` are zero pages, never touched here.
        """
        assert self.format is not None
        layout, chosen = FORMATS[self.format], self.sampled(rows, elements)
        drawn = layout.random_rows(self.finite(rng, len(chosen), elements), rng)
        if self.values in NOT_FINITE:
            scale = np.inf if self.values == "infinite" else np.nan
            drawn = layout.with_scale(drawn, scale, rng)
        if len(chosen) == rows:
            return drawn
        weight = np.zeros((rows, layout.row_bytes(elements)), np.uint8)
        weight[chosen] = drawn
        return weight

    def sampled(self, rows: int, elements: int) -> Array:
        """The rows of a weight that are judged: all, or of a large one the first, the last, a run
        of adjacent rows and some at random."""
        if rows * elements <= LARGE or rows <= SAMPLED:
            return np.arange(rows)
        rng = np.random.default_rng([self.seed, rows, elements])
        together = rng.integers(rows - SAMPLED // 4) + np.arange(SAMPLED // 4)
        apart = rng.choice(rows, SAMPLED // 2, replace=False)
        return np.union1d([0, rows - 1], np.concatenate([together, apart]))

    def some_of(self, count: int, elements: int) -> Array:
        """The matrices that are not zero: all, or of large ones some, the last included."""
        if count * elements <= LARGE or count == 0:
            return np.arange(count)
        few = min(count, max(2, HELD // elements))
        rng = np.random.default_rng([self.seed, count, elements])
        return np.union1d(rng.choice(count, few - 1, replace=False), [count - 1])

    def describe(self) -> str:
        """The case as options of `assay op`."""
        words = ["--shape", ",".join(f"{axis}={size}" for axis, size in self.shape.items())]
        if self.format:
            words = ["--format", self.format, *words]
        return " ".join([*words, "--values", self.values, "--seed", str(self.seed)])


@dataclass(frozen=True, slots=True)
class Law:
    """A property of an op that goes beyond single points of its formula, such as causality.

    `broken(apply, case)` runs a candidate on inputs of its own, at sizes and values near the
    case's, and returns the violation it found, or "". `formats`: the formats of the op to which it
    applies, all if empty; `float32`: only for kernels that round no input.
    """

    name: str
    broken: Callable[[Apply, Case], str]
    formats: tuple[str, ...] = ()
    float32: bool = False


def no_alternatives(inputs: Arguments, expected: dict[str, Array]) -> dict[str, Array]:
    return {}


def no_complaint(inputs: Arguments) -> str:
    return ""


def out_of_range(name: str, indices: Array, size: int) -> str:
    """A complaint about the first index that is not in [0, size), or ""."""
    bad = indices[(indices < 0) | (indices >= size)]
    return f"{name} holds {bad[0]}, not in 0 to {size - 1}" if bad.size else ""


def same_shape(shape: Shape, format: str | None) -> Shape:
    return shape


@dataclass(frozen=True, slots=True)
class Op:
    """One row of the table.

    - `reference(**inputs)` returns the output array, or a tuple in the order of the outputs.
    - `axes` lists the awkward sizes of each named axis; `fit` rounds any sizes to legal ones;
      `corners` are combinations that every trial includes.
    - `make(case)` returns the inputs of a case.
    - `bound(inputs, expected)` returns, per output, the largest |error| of a correct kernel,
      elementwise; zero demands equality. It is derived from the arithmetic, never tuned.
    - `also(inputs, expected)` returns, per output, other values as right as the expected ones,
      along a new first axis: for decisions that are nearer to a threshold than rounding errors.
    - `rounded` is for kernels that round the inputs, by what they round them to ("int8", "bf16"):
      the inputs as rounded, the bound on the output for those, and how far rounding may move it.
    - `bounds` replaces `bound` for kernels that take their inputs unrounded but do not compute in
      plain float32, by the kernel's `activations` ("f16x2").
    - `complaint(inputs)` returns an error in values that no kernel checks, such as an index out of
      range, or "".
    - `cost(shape, format)` returns the cost for the roofline.
    - `nan` is the policy: "element" (a NaN stays in its element), "token" (it makes that token's
      output NaN and affects no other token) or "domain" (NaN is no legal input). Except for
      "domain", infinities are legal too, with the reference's results.
    - `largest` is the end of the domain: the bound holds for inputs of magnitudes up to it.
    - `varying` names the axes whose sizes change from step to step: a kernel serves any up to the
      largest tried. Of other axes it serves the small sizes that cases sample and, beyond them,
      only the combinations that were tried.
    - `separate` names an axis of the weight's rows along which outputs depend on the same slice of
      the inputs alone, so that some rows of a large weight can be judged instead of all.
    - `laws` are further properties, which the judge tests.
    """

    name: str
    reference: Callable[..., Any]
    signature: str
    axes: Mapping[str, Sequence[int]]
    make: Callable[[Case], Arguments]
    bound: Bound
    cost: Callable[[Shape, str | None], Cost]
    formats: tuple[str, ...] = ()
    values: tuple[str, ...] = FINITE
    fit: Callable[[Shape, str | None], Shape] = same_shape
    corners: Sequence[Shape] = ()
    also: Callable[[Arguments, dict[str, Array]], dict[str, Array]] = no_alternatives
    rounded: Mapping[str, Rounded] = field(default_factory=dict)
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    complaint: Callable[[Arguments], str] = no_complaint
    nan: str = "domain"
    largest: float = LARGEST
    varying: tuple[str, ...] = ("tokens",)
    separate: str = ""
    laws: tuple[Law, ...] = ()
    inputs: tuple[Argument, ...] = field(init=False)
    outputs: tuple[Argument, ...] = field(init=False)

    def __post_init__(self) -> None:
        inputs, outputs = parse_signature(self.signature)
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "outputs", outputs)
        if self.nan not in POLICIES:
            raise ValueError(f"{self.name}: nan is one of {', '.join(POLICIES)}, not {self.nan!r}")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The legal kinds of values: `values`, and non-finite ones unless NaN is out of domain."""
        return self.values if self.nan == "domain" else (*self.values, *NOT_FINITE)

    def expected(self, inputs: Arguments) -> dict[str, Array]:
        """The reference's outputs by name."""
        result = self.reference(**inputs)
        results = result if isinstance(result, tuple) else (result,)
        if len(results) != len(self.outputs):
            names = ", ".join(output.name for output in self.outputs)
            raise ValueError(f"{self.name}: its reference gives {len(results)} of {names}")
        return {o.name: np.asarray(r) for o, r in zip(self.outputs, results, strict=True)}

    def case(
        self, shape: Shape, values: str = "normal", seed: int = 0, format: str | None = None
    ) -> Case:
        """A legal case near the requested one; errors name the op, the value and the legal ones."""
        if unknown := set(shape) - set(self.axes):
            raise ValueError(f"{self.name} has no axis {sorted(unknown)[0]!r}: {list(self.axes)}")
        if self.formats and format not in self.formats:
            raise ValueError(f"{self.name} has no format {format!r}: {list(self.formats)}")
        if values not in self.kinds:
            raise ValueError(f"{self.name} has no values {values!r}: {list(self.kinds)}")
        if negative := [f"{axis}={size}" for axis, size in shape.items() if size < 0]:
            raise ValueError(f"{self.name}: sizes are not negative, got {negative[0]}")
        full = {axis: shape.get(axis, sizes[-1]) for axis, sizes in self.axes.items()}
        return Case(self.fit(full, format), values, seed, format, self.largest)

    def quick_cases(
        self, format: str | None = None, count: int = 30, secret: int | None = None
    ) -> list[Case]:
        """Cases of random awkward sizes, each kind of values at least once, and the corners; the
        same ones always, or others for each `secret`: then one in four has a `varying` axis of any
        size up to the largest, and small sizes of the others."""
        start = 0 if secret is None else secret % 2**31
        rng = np.random.default_rng(len(self.name) if secret is None else secret)

        def shape(i: int) -> Shape:
            if secret is None or i % 4 or not self.varying:
                return {axis: int(rng.choice(sizes)) for axis, sizes in self.axes.items()}
            axis = self.varying[i // 4 % len(self.varying)]
            most = max(*self.axes[axis], *(corner.get(axis, 0) for corner in self.corners))
            few = {a: int(rng.choice(sorted(s)[1:4] or s)) for a, s in self.axes.items()}
            return {**few, axis: int(rng.integers(1, most + 1))}

        sampled = [
            self.case(
                shape(i),
                self.kinds[(start + i) % len(self.kinds)],
                start + i,
                format,
            )
            for i in range(count)
        ]
        return sampled + [
            self.case(corner, self.kinds[0], start + i, format)
            for i, corner in enumerate(self.corners)
        ]
