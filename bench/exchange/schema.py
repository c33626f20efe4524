"""What flashinfer-bench's JSON says, as its dataclasses have it: read with a line for each mistake,
and written as it was read.

Nothing of that package is needed here; tests hold these against its own classes.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

DTYPES = (
    "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1",
    "int64", "int32", "int16", "int8", "bool",
)  # fmt: skip
LANGUAGES = ("python", "triton", "cpp", "cuda", "tilelang")
Json = dict[str, Any]


class ExchangeError(ValueError):
    """JSON that is not what it should be; the message says where."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output: the axes of its shape by name, None of a scalar."""

    shape: tuple[str, ...] | None
    dtype: str
    said: Json = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, said: Any, where: str) -> "Tensor":
        shape, dtype = _get(said, "shape", list | None, where), _get(said, "dtype", str, where)
        if dtype not in DTYPES:
            raise ExchangeError(f"{where}: dtype {dtype!r} is none of {', '.join(DTYPES)}")
        return cls(None if shape is None else tuple(map(str, shape)), dtype, said)


@dataclass(frozen=True, slots=True)
class Definition:
    """A formula: `axes` with the sizes of those that never vary, None of others; `reference` is
    Python with a function `run` of the inputs, which gives the outputs."""

    name: str
    op_type: str
    axes: Mapping[str, int | None]
    inputs: Mapping[str, Tensor]
    outputs: Mapping[str, Tensor]
    reference: str
    constraints: tuple[str, ...]
    said: Json = field(compare=False)

    @classmethod
    def of(cls, said: Any, where: str = "definition") -> "Definition":
        name = _get(said, "name", str, where)
        where = f"{where} {name}"
        axes = {
            axis: _get(a, "value", int, f"{where}, axis {axis}")
            if a.get("type") == "const"
            else None
            for axis, a in _get(said, "axes", dict, where).items()
        }
        inputs, outputs = (
            {n: Tensor.of(t, f"{where}, {n}") for n, t in _get(said, side, dict, where).items()}
            for side in ("inputs", "outputs")
        )
        for tensor_name, tensor in (*inputs.items(), *outputs.items()):
            if unknown := [axis for axis in tensor.shape or () if axis not in axes]:
                raise ExchangeError(f"{where}, {tensor_name}: there is no axis {unknown[0]!r}")
        reference = _get(said, "reference", str, where)
        _demand_run(reference, where)
        constraints = tuple(said.get("constraints") or ())
        op_type = _get(said, "op_type", str, where)
        return cls(name, op_type, axes, inputs, outputs, reference, constraints, said)


def _demand_run(reference: str, where: str) -> None:
    try:
        tree = ast.parse(reference)
    except SyntaxError as error:
        raise ExchangeError(f"{where}: its reference is no Python: {error}") from None
    if not any(isinstance(n, ast.FunctionDef) and n.name == "run" for n in tree.body):
        raise ExchangeError(f"{where}: its reference has no function run")


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes of the axes that vary, and what each input is: {"type": "random"}, a scalar with its
    `value`, or safetensors with `path` and `tensor_key`."""

    uuid: str
    axes: Mapping[str, int]
    inputs: Mapping[str, Json]
    said: Json = field(compare=False)

    @classmethod
    def of(cls, said: Any, where: str = "workload") -> "Workload":
        uuid = _get(said, "uuid", str, where)
        where = f"{where} {uuid}"
        axes = {a: _get({a: n}, a, int, where) for a, n in _get(said, "axes", dict, where).items()}
        inputs = _get(said, "inputs", dict, where)
        for name, given in inputs.items():
            kind = _get(given, "type", str, f"{where}, {name}")
            wanted = {"random": (), "scalar": ("value",), "safetensors": ("path", "tensor_key")}
            if kind not in wanted:
                raise ExchangeError(f"{where}, {name}: no inputs are {kind!r}")
            if missing := [key for key in wanted[kind] if key not in given]:
                raise ExchangeError(f"{where}, {name}: it has no {missing[0]}")
        return cls(uuid, axes, inputs, said)


@dataclass(frozen=True, slots=True)
class Solution:
    """An implementation: sources by their paths, and which function of which file is called.
    `into_outputs`: outputs are its last arguments, else it returns them."""

    name: str
    definition: str
    author: str
    language: str
    file: str
    function: str
    into_outputs: bool
    sources: Mapping[str, str]
    said: Json = field(compare=False)

    @classmethod
    def of(cls, said: Any, where: str = "solution") -> "Solution":
        name = _get(said, "name", str, where)
        where = f"{where} {name}"
        spec = _get(said, "spec", dict, where)
        language = _get(spec, "language", str, where)
        if language not in LANGUAGES:
            raise ExchangeError(f"{where}: language {language!r} is none of {', '.join(LANGUAGES)}")
        file, colons, function = _get(spec, "entry_point", str, where).partition("::")
        sources = {
            _get(s, "path", str, where): _get(s, "content", str, where)
            for s in _get(said, "sources", list, where)
        }
        for path in sources:
            parts = PurePosixPath(path).parts
            if PurePosixPath(path).is_absolute() or ".." in parts:
                raise ExchangeError(f"{where}: the source {path} lies outside of its folder")
        if not colons or file not in sources:
            raise ExchangeError(
                f"{where}: its entry point is in {file!r}, of which it has no source"
            )
        into = spec.get("destination_passing_style", True)
        definition, author = (_get(said, key, str, where) for key in ("definition", "author"))
        return cls(
            name, definition, author, language, file, function, bool(into), sources, said
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trace:
    """A workload of a definition, and if a solution was evaluated there, what was found."""

    definition: str
    workload: Workload
    solution: str | None
    evaluation: Json | None

    @classmethod
    def of(cls, said: Any, where: str = "trace") -> "Trace":
        return cls(
            _get(said, "definition", str, where),
            Workload.of(_get(said, "workload", dict, where)),
            said.get("solution"),
            said.get("evaluation"),
        )

    def json(self) -> Json:
        """As it is written, one to a line."""
        return {
            "definition": self.definition,
            "workload": self.workload.said,
            "solution": self.solution,
            "evaluation": self.evaluation,
        }


def _get(said: Any, key: str, kind: Any, where: str) -> Any:
    """A value of a JSON object, of this kind."""
    if not isinstance(said, dict):
        raise ExchangeError(f"{where}: want an object, got {type(said).__name__}")
    if key not in said:
        raise ExchangeError(f"{where}: it has no {key}")
    value = said[key]
    if not isinstance(value, kind) or (kind is int and (isinstance(value, bool) or value < 0)):
        raise ExchangeError(f"{where}: {key} is not {value!r}")
    return value
