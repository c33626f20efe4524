"""Third-party CUDA source, compiled for the emulator, which runs it on this CPU.

The emulator is a tool of conformance/ and runs as a program of its own; the child gets only the
libraries. Where CuPy is installed, NVRTC first checks that the file compiles for a GPU.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from kernels.child import environment
from kernels.cuda.runtime.launch import Launch, items
from kernels.cuda.runtime.nvrtc import compiled, missing
from kernels.foreign.candidate import Candidate, CandidateError, Layout, sizes_of
from kernels.foreign.prototype import Parameter, prototype
from kernels.foreign.report import EMULATED
from reference.op import Op

CAPABILITY = 80
BUILDER = "conformance.cuda.foreign"
PATIENCE = 120.0
ONE_BLOCK = "it was launched as one block: `blocks` and `threads` say otherwise"
C_TYPES = {
    "float": "float", "double": "double", "int8": "int8_t", "uint8": "uint8_t",
    "int16": "int16_t", "uint16": "uint16_t", "int32": "int32_t", "uint32": "uint32_t",
    "int64": "int64_t", "uint64": "uint64_t", "void_p": "void*",
}  # fmt: skip


def emulated(candidate: Candidate, op: Op, told: dict[str, Any]) -> Layout:
    """The child's layout: the emulator's library, the kernel's library and the arguments."""
    name = candidate.name or op.name
    found = prototype(candidate.file.read_text(errors="replace"), name)
    said = [Parameter.parse(word) for word in candidate.manifest.arguments]
    if not (said or found):
        raise CandidateError(
            f"{candidate.file.name} has no kernel {name} with a list of parameters"
        )
    parameters = said or (found or ([], False))[0]
    arguments = [[p.name, p.checked(op, sizes_of(op))] for p in parameters]
    if strange := [kind for _, kind in arguments if kind not in C_TYPES]:
        raise CandidateError(f"{name}: a kernel takes no {strange[0]}")
    if not missing():
        folder = candidate.file.parent
        try:
            source = Launch(candidate.file.name, name, op.signature, items(), folder=folder)
            compiled(source, CAPABILITY)
        except (RuntimeError, UnicodeDecodeError) as error:
            raise CandidateError(str(error).partition("\n")[0]) from None
    kinds = [C_TYPES[kind] for _, kind in arguments]
    command = [sys.executable, "-P", "-m", BUILDER, str(candidate.file), name, *kinds]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PATIENCE,
            check=False, env=environment(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CandidateError(f"compiling took more than {PATIENCE:g} s") from None
    if done.returncode:
        lines = done.stderr.splitlines()
        first = next((line for line in lines if "error:" in line.lower()), "".join(lines[-1:]))
        raise CandidateError(f"it does not compile for the emulator: {first.strip()}")
    paths = json.loads(done.stdout.splitlines()[-1])
    told |= {**paths, "kind": "emulated", "arguments": arguments}
    notes = (EMULATED,) if candidate.manifest.blocks else (EMULATED, ONE_BLOCK)
    return Layout(told, tuple({Path(path).parent for path in paths.values()}), notes)
