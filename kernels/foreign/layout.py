"""How a child loads a candidate: compiled if it has to be, and each argument known by its name."""

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
from kernels.foreign.cuda import emulated
from kernels.foreign.prototype import Parameter, default, prototype
from reference.formats import FORMATS
from reference.op import Op


def laid_out(candidate: Candidate, op: Op, format: str | None = None) -> Layout:
    """Compile what is to be compiled, and find out which argument is what. Source finds the number
    that GGUF gives to the weight's format as ASSAY_FORMAT."""
    name = candidate.name or op.name
    sizes = sizes_of(op)
    told: dict[str, Any] = {
        "kind": candidate.kind,
        "file": str(candidate.file),
        "name": name,
        "arrays": candidate.manifest.arrays,
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
    library, found = candidate.file, None
    if candidate.kind == "source":
        found = prototype(candidate.file.read_text(errors="replace"), name)
        defined = (f"-DASSAY_FORMAT={FORMATS[format].gguf_type}",) if format else ()
        library = compiled(candidate.file, (*defined, *(candidate.manifest.flags or FLAGS)))
    said = [Parameter.parse(word) for word in candidate.manifest.arguments]
    parameters, status = (said, False) if said else found or (default(op), False)
    arguments = [[p.name, p.checked(op, sizes)] for p in parameters]
    missing = [o.name for o in op.outputs if o.name not in [n for n, _ in arguments]]
    if missing:
        raise CandidateError(f"{name} has no parameter {missing[0]}, the output of {op.name}")
    told |= {"library": str(library), "arguments": arguments, "status": status}
    linked = (Path(f[2:]) for f in candidate.manifest.flags if f.startswith("-L"))
    return Layout(told, (library.parent, *linked))
