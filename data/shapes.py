"""Shapes for benchmarks: models by name, and sweeps of an op's sizes (shapes.toml)."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("shapes.toml")
ROPES = ("rope_norm", "rope_neox")
GATES = ("swiglu", "geglu", "reglu")


class ShapeError(ValueError):
    """An error in a shape file."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model of the LLaMA family, and the ops of its RoPE and gate."""

    blocks: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    context: int
    rope: str = "rope_norm"
    gate: str = "swiglu"

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type is int and not (_is_size(value) and value):
                raise ShapeError(f"{field.name} is a size of at least 1, got {value!r}")
        for name, known in (("rope", ROPES), ("gate", GATES)):
            if getattr(self, name) not in known:
                raise ShapeError(
                    f"{name} is one of {', '.join(known)}, got {getattr(self, name)!r}"
                )
        if self.heads % self.kv_heads:
            raise ShapeError(f"{self.heads} heads are no multiple of {self.kv_heads} kv_heads")


@dataclass(frozen=True, slots=True)
class Sweep:
    """One op at many sizes; `where` is its place in the file, for errors."""

    op: str
    shapes: tuple[Mapping[str, int], ...]
    where: str = "a sweep"


@dataclass(frozen=True, slots=True)
class Shapes:
    """The contents of a shape file."""

    models: Mapping[str, ModelShape]
    sweeps: tuple[Sweep, ...]


def read(path: Path = FILE) -> Shapes:
    """A shape file's models and sweeps; ShapeError in one line that names file and place."""
    try:
        found = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ShapeError(f"{path}: {error}") from None
    if strange := sorted(set(found) - {"models", "sweeps"}):
        raise ShapeError(f"{path}: there is no {strange[0]!r}: models, sweeps")
    models = {
        name: _model(f"{path}: models.{name}", values)
        for name, values in _table(f"{path}: models", found.get("models", {})).items()
    }
    sweeps = found.get("sweeps", [])
    if not isinstance(sweeps, list):
        raise ShapeError(f"{path}: sweeps are written [[sweeps]]")
    return Shapes(models, tuple(_sweep(f"{path}: sweep {i}", s) for i, s in enumerate(sweeps, 1)))


def _table(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ShapeError(f"{where}: want a table, got {value!r}")
    return value


def _model(where: str, values: Any) -> ModelShape:
    values = _table(where, values)
    known = [field.name for field in fields(ModelShape)]
    if strange := [name for name in values if name not in known]:
        raise ShapeError(f"{where} has no axis {strange[0]!r}: {', '.join(known)}")
    try:
        return ModelShape(**values)
    except ShapeError as error:
        raise ShapeError(f"{where}: {error}") from None
    except TypeError as error:
        missing = str(error).partition(": ")[2] or str(error)
        raise ShapeError(f"{where} lacks {missing}") from None


def _sweep(where: str, values: Any) -> Sweep:
    values = _table(where, values)
    if set(values) != {"op", "shapes"} or not isinstance(values["shapes"], list):
        raise ShapeError(f"{where}: want op and shapes, a list, got {sorted(values)}")
    for shape in values["shapes"]:
        for axis, size in _table(where, shape).items():
            if not _is_size(size):
                raise ShapeError(f"{where}: {axis} is a size, got {size!r}")
    return Sweep(str(values["op"]), tuple(values["shapes"]), where)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
