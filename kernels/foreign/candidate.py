"""A candidate to be judged: its file, its function and the meaning of each argument."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from kernels.foreign.cubin import CubinError, read_kernel
from kernels.foreign.manifest import (
    LaunchError,
    Manifest,
    ManifestError,
    evaluated,
    read_manifest,
)
from reference import ggml
from reference.formats import FORMATS
from reference.op import Arguments, Case, Op

KINDS = {
    ".py": "python", ".c": "source", ".cc": "source", ".cpp": "source", ".cxx": "source",
    ".so": "library", ".dylib": "library", ".cu": "cuda", ".cubin": "cubin",
}  # fmt: skip
DEFINED = re.compile(r"^(?:def|void) (\w+)\(", re.MULTILINE)
ON_GPU = ("cuda", "cubin")  # kinds that are launched on a GPU or its emulator
FLAGS = ("-O3", "-march=native")
ALWAYS = ("-shared", "-fPIC")
COMPILERS = {".c": ("cc", "clang", "gcc"), "": ("c++", "clang++", "g++")}
PATIENCE = 120.0  # seconds for a compiler
SANDBOX = Path(__file__).with_name("sandbox.py")


class CandidateError(ValueError):
    """A candidate that cannot be judged: no such file or function, or an argument of unknown
    name."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A function in a `file`: `kind` is "python", "pickled" (a callable), "source" (C or C++),
    "library", "cuda" or "cubin"; `name` is the function's name, by default the op's; the
    `manifest`, which may be a file that was `given`, holds the rest."""

    file: Path
    kind: str
    name: str = ""
    manifest: Manifest = field(default_factory=Manifest)
    given: Path | None = None

    @classmethod
    def of(cls, where: str | Path, manifest: str | Path | None = None, **said: Any) -> "Candidate":
        """The candidate named by FILE or FILE:NAME, with the `manifest`, by default the one beside
        the file or in comments at its top; values in `said` override both."""
        path, name = str(where), ""
        if not Path(path).exists():
            path, _, name = path.rpartition(":") if ":" in path else (path, "", "")
        file = Path(path).absolute()
        if not file.is_file():
            raise CandidateError(f"there is no file {path}")
        if file.suffix not in KINDS:
            raise CandidateError(f"{file.name}: want one of {', '.join(KINDS)}")
        given = Path(manifest).absolute() if manifest else None
        found = read_manifest(file, said, given)
        return cls(file, KINDS[file.suffix], name or found.name, found, given)

    @classmethod
    def from_callable(cls, function: Callable[..., Any], **said: Any) -> "Candidate":
        """The candidate of a function of this process: its file, or its pickled code if it has no
        file."""
        inner = getattr(function, "py_func", getattr(function, "__wrapped__", function))
        file = getattr(getattr(inner, "__code__", None), "co_filename", "")
        name = getattr(inner, "__qualname__", "")
        module = getattr(inner, "__module__", "")
        if Path(file).is_file() and module != "__main__" and "<" not in name:
            return cls(Path(file).absolute(), "python", name, Manifest(**said))
        from numba import cloudpickle

        folder = Path(tempfile.mkdtemp(prefix="callable-"))
        where = folder / "function.pickle"
        where.write_bytes(cloudpickle.dumps(function))
        return cls(where, "pickled", name or "function", Manifest(**said))

    def in_format(self, format: str) -> "Candidate":
        """The same candidate for weights in this format."""
        return replace(self, manifest=replace(self.manifest, format=format))

    def __str__(self) -> str:
        shown = "" if self.kind == "pickled" else f"{self.file.name}"
        return ":".join(filter(None, (shown, self.name)))

    def further_arguments(self, op: Op, shape: Mapping[str, int]) -> dict[str, Any]:
        """What a call passes beyond the op's arguments and sizes: values of the manifest's
        expressions and a CUDA kernel's launch configuration; ManifestError if they cannot be
        computed."""
        sizes = {**shape, **{name: shape[a] for a in shape for name in size_names(op, a)}}
        words = (word.partition(":")[0].strip() for word in self.manifest.arguments)
        found: dict[str, Any] = {
            word: int(evaluated(word, sizes)) for word in words if not word.isidentifier()
        }
        if self.kind not in ON_GPU:
            return found
        try:
            found["launch"] = launch = self.manifest.launch(sizes)
            if self.kind == "cubin":
                read_kernel(self.file, self.name or op.name).demand(launch)
        except (LaunchError, CubinError) as error:
            at = ", ".join(f"{axis}={size}" for axis, size in shape.items())
            raise LaunchError(f"{error}, at {at}; `takes` says which sizes it does") from None
        if self.kind == "cuda" and launch[4:6] != [1, 1]:
            raise ManifestError("the emulator has threads in x alone: one number")
        return found


@dataclass(frozen=True, slots=True)
class Layout:
    """How a child loads a candidate: the request it receives, folders it may read, and `notes` for
    the report."""

    told: dict[str, Any]
    folders: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()


def defined(file: Path) -> list[str]:
    """Names of the functions at the top level of a Python or C file."""
    return DEFINED.findall(file.read_text(errors="replace"))


def sizes_of(op: Op) -> tuple[str, ...]:
    """Names under which a candidate may receive the op's sizes: the axis itself unless an argument
    has that name, and the axis prefixed with `n_`."""
    return tuple(name for axis in op.axes for name in size_names(op, axis))


def size_names(op: Op, axis: str) -> list[str]:
    """`hidden` and `n_hidden`; of linear's `out`, which is also an array, `n_out` alone."""
    taken = {a.name for a in (*op.inputs, *op.outputs)}
    return [name for name in (axis, f"n_{axis}") if name not in taken]


@cache
def compiled(file: Path, flags: tuple[str, ...]) -> Path:
    """Compile a C or C++ file to a shared library; CandidateError with the compiler's first error.

    The compiler is sandboxed too: a manifest may pass flags that run programs or write files.
    """
    named = COMPILERS[file.suffix if file.suffix in COMPILERS else ""]
    compiler = next(filter(None, map(shutil.which, named)), None)
    if compiler is None:
        raise CandidateError(f"no compiler for {file.name}: want one of {', '.join(named)}")
    library = Path(tempfile.mkdtemp(prefix="compiled-")) / f"{file.stem}.so"
    folder = str(library.parent)
    confined = {
        "readable": ["/"], "writable": [folder, "/dev/null"], "hidden": [], "memory": 2**33,
        "files": 2**28, "seconds": int(PATIENCE), "processes": True,
    }  # fmt: skip
    alone = [sys.executable, "-I", "-B", str(SANDBOX), json.dumps(confined)]
    command = [compiler, *ALWAYS, "-o", str(library), str(file), *flags, "-lm"]
    try:
        done = subprocess.run(
            [*alone, *command], capture_output=True, text=True, errors="replace", timeout=PATIENCE,
            check=False, env={**os.environ, "TMPDIR": folder, "CCACHE_DISABLE": "1"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CandidateError(f"compiling {file.name} took more than {PATIENCE:g} s") from None
    if done.returncode:
        lines = done.stderr.replace(str(file), file.name).splitlines()
        first = next((line for line in lines if "error:" in line), lines[0] if lines else "")
        raise CandidateError(f"it does not compile: {first}")
    return library


def scales_apart(op: Op) -> Op:
    """The op for kernels that multiply a block's sum by its scale. Where a scale is infinite, a
    zero code gives NaN in the reference and infinity here; both are accepted."""
    if not op.formats:
        return op

    def also(inputs: Any, expected: Any) -> Any:
        """The op's further accepted values, and infinity for NaN in tokens that have none as
        input."""
        found, weight = dict(op.also(inputs, expected)), inputs.get("weight")
        if weight is None or np.isfinite(FORMATS[inputs["format"]].dequantise(weight)).all():
            return found
        x = inputs[op.inputs[0].name]
        for name, want in expected.items():
            if not np.isnan(want).any() or want.shape[0] != x.shape[0]:
                continue
            number = ~np.isnan(x).reshape(len(x), -1).any(axis=1)
            there = np.isnan(want) & number.reshape(-1, *[1] * (want.ndim - 1))
            more = [np.where(there, value, np.nan) for value in (np.inf, -np.inf)]
            found[name] = np.stack([*found.get(name, ()), *more])
        return found

    return replace(op, also=also)


def with_numerics(op: Op, numerics: str) -> tuple[Op, str]:
    """The op with the bound for a candidate's numerics, and the bound's name.

    "exact" is float32. Others are those for which the op has bounds; "bf16" and "f16" of an op
    without one are float32 whose output is rounded once more. "fast" is the loosest bound. The
    domain of "ggml" ends where ggml's float16 scales overflow, and excludes NaN, which int8 cannot
    hold.
    """
    if numerics in ("", "exact"):
        return op, "float32"
    if numerics == "fast":
        numerics = "bf16"
    if numerics == "ggml" and numerics in op.rounded:
        return replace(op, nan="domain", make=within(op.make, ggml.LARGEST)), numerics
    if numerics in op.rounded or numerics in op.bounds:
        return op, numerics
    if numerics not in ROUNDOFF:
        there = ", ".join(["exact", "fast", *op.rounded, *op.bounds, *ROUNDOFF])
        raise CandidateError(f"{op.name} has no bound for numerics {numerics!r}: {there}")
    relative, least = ROUNDOFF[numerics]

    def bound(inputs: Any, expected: Any) -> Any:
        """The float32 bound plus half a unit in the last place of the output's type."""
        before = op.bound(inputs, expected)
        return {
            name: before[name] + relative * (abs(want) + before[name]) + least
            if want.dtype.kind == "f"
            else before[name]
            for name, want in expected.items()
        }

    return replace(op, bounds={**op.bounds, numerics: bound}), numerics


def within(make: Callable[[Case], Arguments], largest: float) -> Callable[[Case], Arguments]:
    """The same arguments with activations clipped to the largest that the domain allows."""

    def made(case: Case) -> Arguments:
        given = make(case)
        return {**given, "x": given["x"].clip(-largest, largest)}

    return made


ROUNDOFF = {"bf16": (2.0**-8, 2.0**-134), "f16": (2.0**-11, 2.0**-25)}
