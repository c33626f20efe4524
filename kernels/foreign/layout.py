"""How a child loads a candidate: compiled if necessary, each argument identified by name."""

import ctypes
from pathlib import Path
from typing import Any

from kernels.foreign.candidate import (
    FLAGS,
    Candidate,
    CandidateError,
    Layout,
    compiled,
    sizes_of,
)
from kernels.foreign.cubin import CubinError, read_kernel
from kernels.foreign.cuda import emulated
from kernels.foreign.prototype import OURS, Parameter, default, prototype
from reference.formats import FORMATS
from reference.op import Op


def laid_out(candidate: Candidate, op: Op, format: str | None = None) -> Layout:
    """Compile what must be compiled and identify the arguments. C source gets the weight format's
    GGUF type number as ASSAY_FORMAT."""
    name = candidate.name or op.name
    sizes = sizes_of(op)
    told: dict[str, Any] = {
        "kind": candidate.kind,
        "file": str(candidate.file),
        "name": name,
        "arrays": candidate.manifest.arrays,
        "given": [word.partition(":")[0].strip() for word in candidate.manifest.arguments],
        "inputs": [a.name for a in op.inputs if a.axes],
        "outputs": [o.name for o in op.outputs],
        "scalars": [a.name for a in op.inputs if not a.axes]
        + list(sizes)
        + ["format"] * bool(op.formats),
    }
    if candidate.kind in ("python", "pickled"):
        return Layout(told)
    if candidate.kind == "cuda":
        return emulated(candidate, op, told)
    if candidate.kind == "cubin":
        return _launched(candidate, op, told)
    library, found = candidate.file, None
    if candidate.kind == "source":
        found = prototype(candidate.file.read_text(errors="replace"), name)
        defined = (f"-DASSAY_FORMAT={FORMATS[format].gguf_type}",) if format else ()
        library = compiled(candidate.file, (*defined, *(candidate.manifest.flags or FLAGS)))
    said = [Parameter.parse(word) for word in candidate.manifest.arguments]
    parameters, status = (said, False) if said else found or (default(op), False)
    arguments = [[p.name, p.checked(op, sizes)] for p in parameters]
    _demand_outputs(name, op, arguments)
    guessed = () if said or found else (_assumed(name, parameters, arguments),)
    told |= {"library": str(library), "arguments": arguments, "status": status}
    linked = (Path(f[2:]) for f in candidate.manifest.flags if f.startswith("-L"))
    return Layout(told, (library.parent, *linked), guessed)


def _assumed(name: str, parameters: list[Parameter], arguments: list[list[str]]) -> str:
    """The note for a library's function without a description: which arguments it is called
    with."""
    named = (
        f"{p.name}*" if p.pointer else f"{p.name}:{OF_C[kind]}"
        for p, (_, kind) in zip(parameters, arguments, strict=True)
    )
    return f"a library says no types: called as {name}({', '.join(named)}); else say `arguments`"


OF_C = {kind: word for word, kind in OURS.items()}  # the manifest's names of ctypes' types
WHOLE = {1: "int8", 2: "int16", 4: "int32", 8: "int64"}  # by a parameter's size in bytes
REAL = {4: "float", 8: "double"}


def _launched(candidate: Candidate, op: Op, told: dict[str, Any]) -> Layout:
    """The parameters of a cubin's kernel by meaning; their sizes must be those in the machine
    code."""
    kernel = read_kernel(candidate.file, told["name"])
    if not candidate.manifest.blocks:
        raise CandidateError(
            f"no manifest says how {kernel.name} is launched: `assay judge --template {op.name}"
            f" --for cubin {candidate.file.with_suffix('.toml').name}` begins one"
        )
    parameters = [Parameter.parse(word) for word in candidate.manifest.arguments] or default(op)
    if len(parameters) != len(kernel.parameters):
        named = ", ".join(p.name for p in parameters)
        raise CubinError(
            f"{kernel.name} has {len(kernel.parameters)} parameters, and {len(parameters)} are"
            f" described: {named}; say `arguments`"
        )
    arguments = []
    for parameter, (_, size) in zip(parameters, kernel.parameters, strict=True):
        kind = parameter.checked(op, sizes_of(op))
        if not parameter.type and kind != "void_p":
            kind = (REAL if kind in REAL.values() else WHOLE).get(size, kind)
        given = ctypes.sizeof(getattr(ctypes, f"c_{kind}"))
        if given != size:
            raise CubinError(
                f"{kernel.name}: its parameter {parameter.name} has {size} bytes, not {given}"
            )
        arguments.append([parameter.name, kind])
    _demand_outputs(kernel.name, op, arguments)
    told |= {"arguments": arguments, "capability": kernel.capability}
    return Layout(told, notes=(str(kernel),))


def _demand_outputs(name: str, op: Op, arguments: list[list[str]]) -> None:
    there = [argument for argument, _ in arguments]
    if missing := [o.name for o in op.outputs if o.name not in there]:
        raise CandidateError(f"{name} has no parameter {missing[0]}, the output of {op.name}")
