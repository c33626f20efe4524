"""CUDA kernels compiled for a GPU by NVRTC, which needs no GPU, in a child (nvrtc_process.py).

CuPy brings the binding; the library is found in a CUDA toolkit or in the wheel nvidia-cuda-nvrtc.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels.cache import keep, place_of, read, say
from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.launch import Launch
from kernels.cuda.runtime.nvrtc_process import CompileError, Compiler

OPTIONS = ("--std=c++17", "-default-device", "--ptxas-options=-v")
_USED = re.compile(r"Used (\d+) registers(?:.*?(\d+) bytes smem)?")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code, and its resources: per thread (`registers`, bytes of `spills`) and per block
    (bytes of static `shared` memory)."""

    cubin: bytes
    registers: int
    spills: int
    shared: int


def missing() -> str:
    """Why nothing can be compiled here; "" if it can."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError, OSError) as error:  # the last of a home that is read-only
        return f"CuPy with NVRTC cannot be loaded: {str(error).splitlines()[0]}"
    return ""


@cache
def tools() -> dict[str, str]:
    """Versions of CuPy and the compiler, and the compiler's options."""
    if missing():
        return {}
    import cupy
    from cupy_backends.cuda.libs import nvrtc

    version = ".".join(map(str, nvrtc.getVersion()))
    return {"cupy": cupy.__version__, "nvrtc": version, "options": " ".join(OPTIONS)}


def compiled(launch: Launch, capability: int) -> Compiled:
    """Compile for GPUs of a compute capability, e.g. 90; DeviceError with the compiler's first
    error."""
    cubin, log = _program(launch, capability)
    return Compiled(cubin, *_resources(launch, log))


def kept(launch: Launch, capability: int) -> Path:
    """The machine code of all functions of its source from the cache folder, compiled if it is
    missing there or damaged."""
    name = _name(launch, capability)
    code, digest = read(name), read(f"{name}.sha256")
    if code is None or digest != _digest(name, code):
        if code is not None:
            say(f"{name} in the cache folder is damaged or another's: it is compiled anew")
        # not `compiled`: a compiler with another log format compiles nonetheless
        code, log = _program(launch, capability)
        keep(f"{name}.log", log.encode())
        keep(name, code)
        keep(f"{name}.sha256", _digest(name, code))
    return place_of(name)


def resources(launch: Launch, capability: int) -> Compiled | None:
    """The resources of the stored machine code; None if there is none, or they are unknown."""
    name = _name(launch, capability)
    code, log = read(name), read(f"{name}.log")
    if code is None or not log or f"'{launch.function}'" not in log.decode():
        return None
    return Compiled(code, *_resources(launch, log.decode()))


def _name(launch: Launch, capability: int) -> str:
    """The name of this compiler's output for its source, in the cache folder."""
    words = f"{launch.source_digest} {sorted(tools().items())}"
    return f"cuda/{hashlib.sha256(words.encode()).hexdigest()[:32]}-sm_{capability}.cubin"


def _digest(name: str, code: bytes) -> bytes:
    """Digest of code stored under this name, and no other."""
    return hashlib.sha256(name.encode() + b"\0" + code).hexdigest().encode()


def _program(launch: Launch, capability: int) -> tuple[bytes, str]:
    """Machine code of all functions of its source, and the compiler's log."""
    key = launch.source_digest, capability
    if key not in _PROGRAMS:
        options = (*OPTIONS, f"-arch=sm_{capability}", *launch.defines)
        try:
            _PROGRAMS[key] = _COMPILER.compiled(launch.source, launch.files, options)
        except CompileError as error:
            named = " ".join((launch.source, *launch.defines))
            raise DeviceError(f"{named} does not compile for sm_{capability}: {error}") from None
    return _PROGRAMS[key]


_PROGRAMS: dict[tuple[str, int], tuple[bytes, str]] = {}
_COMPILER = Compiler()


def _resources(launch: Launch, log: str) -> tuple[int, int, int]:
    """Registers, bytes spilled and bytes of shared memory of the function, from ptxas' log."""
    parts = log.split("Compiling entry function ")
    (own,) = [part for part in parts if part.startswith(f"'{launch.function}'")]
    used, spilt = _USED.search(own), _SPILLS.search(own)
    assert used is not None
    spills = sum(int(size) for size in spilt.groups()) if spilt else 0
    return int(used[1]), spills, int(used[2] or 0)
