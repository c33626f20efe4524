"""Shares in C and Python, in the engine's calling convention."""

import ctypes
import hashlib
import re
import shutil
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from conformance.support.child import run
from kernels.cpu.runtime.construction import CALLS
from kernels.cpu.runtime.object_code import Code
from kernels.cpu.runtime.share import PROTOTYPE, Words, all_arguments
from reference.op import DTYPES, Argument, Arguments, Array
from reference.table import OPS

C_FOLDER = Path(__file__).parent / "c"
COMPILER = shutil.which("gcc") or shutil.which("cc")
FLAGS = ("-std=gnu11", "-O2", "-ffp-contract=off", "-fPIC", "-fno-stack-protector", "-w")
C_TYPES = {
    "f32": "float", "f64": "double", "format": "uint8_t", "i8": "int8_t", "u8": "uint8_t",
    "u16": "uint16_t", "i32": "int32_t", "i64": "int64_t", "u32": "uint32_t", "u64": "uint64_t",
}  # fmt: skip

# Does one thread's share: inputs, outputs, thread, n_threads.
Work = Callable[[Arguments, Mapping[str, Array], int, int], None]


class NativeShare:
    """The interface that the judge and the engine expect of a share with an address."""

    calls = None

    def __init__(self, name: str, op: str, format: str | None) -> None:
        self.name, self.format, self.signature = name, format or "", OPS[op].signature

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"

    @cached_property
    def entry(self) -> Any:
        raise NotImplementedError

    @property
    def address(self) -> int:
        return ctypes.cast(self.entry, ctypes.c_void_p).value or 0

    def compile(self) -> None:
        _ = self.entry

    def __call__(self, args: Words, thread: int = 0, n_threads: int = 1) -> None:
        self.entry(args.ctypes.data, thread, n_threads)


class CShare(NativeShare):
    """The function `share` of a C source, whose arguments are the struct `Block`."""

    def __init__(self, name: str, op: str, format: str | None, source: str, folder: Path) -> None:
        super().__init__(name, op, format)
        self.source = f"{block_of(self.signature)}{source}"
        self._folder = folder

    @cached_property
    def fingerprint(self) -> str:
        prelude = (C_FOLDER / "prelude.h").read_text()
        return hashlib.sha256(f"{prelude}{self.source}{FLAGS}{self.format}".encode()).hexdigest()

    @cached_property
    def _library(self) -> tuple[Path, str]:
        """Compile once; returns the library's path and its assembly."""
        assert COMPILER, "no C compiler"
        name = self._folder / self.fingerprint[:16]
        source, assembly, library = (name.with_suffix(end) for end in (".c", ".s", ".so"))
        source.write_text(self.source)
        words = [f"-D{self.format}"] if self.format else []
        words += ["-include", C_FOLDER / "prelude.h", "-S", source, "-o", assembly]
        run(COMPILER, *FLAGS, *words, check=True, capture_output=False)
        run(COMPILER, "-shared", assembly, "-o", library, "-lm", check=True, capture_output=False)
        return library, assembly.read_text()

    @cached_property
    def code(self) -> Code:
        library, assembly = self._library
        return Code(library.read_bytes(), complaint_about(assembly))

    @cached_property
    def entry(self) -> Any:
        function = ctypes.CDLL(str(self._library[0])).share
        function.argtypes, function.restype = PROTOTYPE._argtypes_, None
        return function


class PythonShare(NativeShare):
    """A Python function, callable by the C convention."""

    def __init__(self, name: str, op: str, format: str | None, work: Work) -> None:
        super().__init__(name, op, format)
        self._work, self._op = work, OPS[op]

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.name.encode()).hexdigest()

    @cached_property
    def code(self) -> Code:
        return Code(self.name.encode(), "")

    @cached_property
    def entry(self) -> Any:
        return PROTOTYPE(self._called)

    def _called(self, args: int, thread: int, n_threads: int) -> None:
        values = self._values(args)
        inputs = {a.name: values[a.name] for a in self._op.inputs}
        if self.format:
            inputs["format"] = self.format
        outputs = {o.name: values[o.name] for o in self._op.outputs}
        with np.errstate(all="ignore"):
            self._work(inputs, outputs, thread, n_threads)

    def _values(self, block: int) -> dict[str, Any]:
        """The arguments in a block."""
        position, values = 0, {}

        def words(kind: type, count: int) -> list[Any]:
            nonlocal position
            position += count
            return list((kind * count).from_address(block + 8 * (position - count)))

        for argument in all_arguments(self.signature):
            if argument.axes:
                (address,) = words(ctypes.c_uint64, 1)
                dims = words(ctypes.c_int64, len(argument.axes))
                values[argument.name] = _array(argument, address, dims)
            else:
                kind = ctypes.c_double if argument.dtype == "f64" else ctypes.c_int64
                (values[argument.name],) = words(kind, 1)
        return values


def _array(argument: Argument, address: int, dims: list[int]) -> Array:
    dtype = np.dtype(DTYPES.get(argument.dtype, np.uint8))
    count = int(np.prod(dims))
    if not count:
        return np.empty(dims, dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(dims)


def block_of(signature: str) -> str:
    """The C struct for the arguments of this signature."""
    fields = []
    for argument in all_arguments(signature):
        kind = C_TYPES[argument.dtype]
        if argument.axes:
            fields += [
                f"{kind} *{argument.name}",
                f"int64_t {argument.name}_dims[{len(argument.axes)}]",
            ]
        else:
            fields.append(f"{kind if kind == 'double' else 'int64_t'} {argument.name}")
    return f"typedef struct {{ {'; '.join(fields)}; }} Block;\n"


def first_alone(work: Work) -> Work:
    """The first thread does all of the work."""

    def alone(inputs: Arguments, outputs: Mapping[str, Array], thread: int, n_threads: int) -> None:
        if thread == 0:
            work(inputs, outputs, thread, n_threads)

    return alone


def storing(function: Callable[..., Any]) -> Work:
    """The first thread stores the results of a function with the reference's parameters."""

    def work(inputs: Arguments, outputs: Mapping[str, Array], thread: int, n_threads: int) -> None:
        result = function(**inputs)
        results = result if isinstance(result, tuple) else (result,)
        for out, value in zip(outputs.values(), results, strict=True):
            out[...] = value

    return first_alone(work)


# The rules of kernels/cpu/runtime/construction.py, for a C compiler's assembly.

_INSTRUCTIONS = re.compile(
    r"^\s+(v?ldmxcsr|fldcw|fldenv|frstor|f?xrstor\w*|rdtscp?|rdpmc|rdrand|rdseed|rdpid|cpuid|xgetbv"
    r"|syscall|sysenter|int|std|in|out)\b",
    re.M,
)
_WRITABLE = re.compile(
    r"^\s+(\.l?comm\b|\.(?:section\s+)?\.?t?(?:data|bss)\b(?!\.rel\.ro).*)", re.M
)
_NAMED = re.compile(r"\b(\w+)@(?:PLT|GOT\w*|got\w*|tls\w*)")


def complaint_about(assembly: str) -> str:
    """What a share's assembly must not contain, or ""."""
    if found := _WRITABLE.search(assembly):
        return f"has memory that lasts from call to call: {' '.join(found[1].split())}"
    for name in _NAMED.findall(assembly):
        if name not in CALLS and name != "share":
            return f"calls {name}"
    if found := _INSTRUCTIONS.search(assembly):
        return f"runs {found[1]}"
    if found := re.search(r"%[fg]s:", assembly):
        return "reads memory of the thread"
    if found := re.search(r"^\s+call\s+\*.*", assembly, re.M):
        return f"calls an address: {' '.join(found[0].split())}"
    return ""
