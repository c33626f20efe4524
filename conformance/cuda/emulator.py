"""An emulated CUDA device: the same .cu files compiled as C++, their threads run as fibers one
after the other on the CPU (host.cpp), with every memory access checked. NumPy replaces cuBLAS.

Faults raise KernelError: accesses out of bounds, reads of uninitialised shared memory, races within
a block and between blocks, barriers that not all threads reach, and undefined behaviour of C++.
"""

import ctypes
import hashlib
import re
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from conformance.support import child
from kernels.cache import cache_folder
from kernels.cuda.runtime.device import EMULATED, Buffer, DeviceError
from kernels.cuda.runtime.launch import Grid, Launch
from kernels.cuda.runtime.product import Factors, Stage
from kernels.errors import KernelError
from reference.formats.floats import decode_bf16
from reference.op import Array

HERE = Path(__file__).parent
HOST = ("host.h", "host.cpp", "fibers.h", "accesses.h")
ALIGNED = 256
WARP, MOST_THREADS, MOST_SHARED = 32, 1024, 227 << 10  # shared memory of sm_90
SAID = 1000  # characters of a message
# Debug information for line numbers only; _FORTIFY_SOURCE does not work with fibers.
COMMON = ("-std=c++20", "-fPIC", "-gdwarf-4", "-g1", "-U_FORTIFY_SOURCE")
# The other checks of "undefined" are about invalid pointers, which the access checks find.
UNDEFINED = "shift,integer-divide-by-zero,signed-integer-overflow,bounds,alignment,return"
# No inlining of functions called once: one large function takes longer to compile.
KERNEL = (
    "-O1", f"-fsanitize=thread,{UNDEFINED}", "-ffp-contract=off", "-fno-var-tracking",
    "-fno-inline-functions-called-once",
)  # fmt: skip
_SITE = re.compile(r" at (0x[0-9a-f]+)$")


def compiler() -> str | None:
    """A C++ compiler that supports these sanitizers."""
    return shutil.which("g++")


class _Range(ctypes.Structure):
    _fields_ = (("begin", ctypes.c_void_p), ("size", ctypes.c_size_t))


def _run(name: str, *options: str | Path) -> None:
    command = [compiler() or "g++", *options]
    done = child.run(*command)
    if done.returncode:
        raise KernelError(f"{name} does not compile as C++:\n{done.stderr}")


def _kept(name: str, words: Iterable[str], make: Callable[[Path], None]) -> Path:
    """A file in the cache folder, by a digest of these words; made if it does not exist."""
    stem, _, kind = name.partition(".")
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()[:24]
    folder = cache_folder() / "emulated"
    path = folder / f"{stem}-{digest}.{kind}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            make(Path(aside) / name)
            (Path(aside) / name).replace(path)
    return path


def _host() -> list[str]:
    """The contents of the files that everything is compiled with."""
    return [(HERE / file).read_text() for file in HOST]


@cache
def _header() -> Path:
    """CUDA's vocabulary, host.h and its precompiled header, which takes long to parse."""
    text = f'#include "{HERE / "host.h"}"\n'
    words = [text, *COMMON, *KERNEL, *_host()]

    def write(path: Path) -> None:
        path.write_text(text)

    header = _kept("host.h", words, write)
    options = (*COMMON, *KERNEL, "-x", "c++-header", header)
    _kept("host.h.gch", words, lambda path: _run("host.h", *options, "-o", path))
    return header


def _library(name: str, source: str, files: Mapping[str, str], *options: str | Path) -> Path:
    """The shared object of a C++ source that includes these files. A kernel may share its name with
    a C library function, and a variable's with that of another format's kernel."""
    options = (*COMMON, *options, "-shared", "-fno-gnu-unique", "-Wl,-Bsymbolic")

    def make(path: Path) -> None:
        for file, content in {**files, f"{name}.cpp": source}.items():
            path.with_name(file).write_text(content)
        _run(name, path.with_name(f"{name}.cpp"), *options, f"-I{HERE}", "-o", path)

    words = [source, *map(str, options), *(word for file in files.items() for word in file)]
    return _kept(f"{name}.so", [*words, *_host()], make)


def host_library() -> Path:
    """The emulator itself, which is loaded first, with global symbols."""
    return _library("host", (HERE / "host.cpp").read_text(), {}, "-O2", "-march=native")


@cache
def _runtime() -> ctypes.CDLL:
    runtime = ctypes.CDLL(str(host_library()), ctypes.RTLD_GLOBAL)
    runtime.run_grid.restype = ctypes.c_bool
    return runtime


@cache
def _loaded(launch: Launch) -> ctypes.CDLL:
    """The kernel, called with an array of the addresses of its parameters."""
    _runtime()
    return ctypes.CDLL(str(library(launch, launch.parameters)))


def library(launch: Launch, parameters: Sequence[str]) -> Path:
    """The kernel compiled for the emulator, with parameters of these types and only the functions
    that it calls. The sanitizers' callbacks are in host.cpp."""
    given = ", ".join(f"*({kind}*)p[{i}]" for i, kind in enumerate(parameters))
    kind = f"void (*)({', '.join(parameters)})"
    source = f"""#include "{launch.source}"
extern "C" {{
__attribute__((weak, visibility("hidden"))) extern char __start_kernel_shared, __stop_kernel_shared;
void shared_memory(char** begin, char** end) {{
  *begin = &__start_kernel_shared;
  *end = &__stop_kernel_shared;
}}
__attribute__((no_sanitize("thread"))) void invoke(void** p) {{
  reinterpret_cast<{kind}>({launch.function})({given});
}}
}}
"""
    options = (*KERNEL, *launch.defines, "-include", _header(), "-nodefaultlibs", "-lm", "-lc")
    return _library(launch.function, source, launch.files, *options)


def _limits(grid: Grid, declared: int) -> dict[str, bool]:
    """The launch limits of GPUs, and whether this grid of a kernel that declares this many bytes of
    shared memory respects them."""
    x, y, z = grid.blocks
    return {
        "blocks of no whole warps": grid.threads > 0 and grid.threads % WARP == 0,
        f"more than {MOST_THREADS} threads in a block": grid.threads <= MOST_THREADS,
        "so many blocks": x < 2**31 and y < 2**16 and z < 2**16 and x * y * z < 2**32,
        f"more than {MOST_SHARED:,} bytes of shared memory": grid.shared + declared <= MOST_SHARED,
    }


class _Memory:
    """Bytes aligned to 256, NaN as floats if `filled`."""

    def __init__(self, size: int, filled: bool) -> None:
        self._array = np.empty(size + ALIGNED, np.uint8)
        if filled:
            self._array[:] = 0xFF
        self.address = -(-self._array.ctypes.data // ALIGNED) * ALIGNED
        self.size = size


class Emulator:
    """A Device with `total` bytes. It runs everything synchronously, recorded launches on replay;
    every second launch runs blocks and threads in reverse order. Memory that is not `filled` uses
    only the pages that are touched."""

    name = identity = library = EMULATED
    capability = 90
    bounded = emulated = True

    def __init__(self, total: int = 2**32, filled: bool = True) -> None:
        self.total, self._filled = total, filled
        self._memories: weakref.WeakSet[_Memory] = weakref.WeakSet()
        self._recorded: list[Callable[[], None]] | None = None
        self._runs: Counter[Launch] = Counter()

    def memory(self) -> tuple[int, int]:
        return self.total - sum(memory.size for memory in self._memories), self.total

    def empty(self, size: int) -> Buffer:
        free, total = self.memory()
        if size > free:
            raise DeviceError(f"{self.name}: {size:,} bytes wanted, {free:,} of {total:,} are free")
        memory = _Memory(size, self._filled)
        self._memories.add(memory)
        return Buffer(memory.address, size, memory)

    def write(self, buffer: Buffer, array: Array) -> None:
        assert array.flags.c_contiguous
        assert array.nbytes <= buffer.bytes
        ctypes.memmove(buffer.address, array.ctypes.data, array.nbytes)

    def clear(self, buffer: Buffer) -> None:
        ctypes.memset(buffer.address, 0, buffer.bytes)

    def read(self, buffer: Buffer, array: Array) -> None:
        assert array.flags.c_contiguous
        assert array.nbytes <= buffer.bytes
        ctypes.memmove(array.ctypes.data, buffer.address, array.nbytes)

    def ask(self, buffer: Buffer) -> Callable[[], Array]:
        found = np.frombuffer(ctypes.string_at(buffer.address, buffer.bytes), np.uint8)
        return lambda: found

    def prepare(self, stage: Stage) -> None:
        if isinstance(stage, Launch):
            _loaded(stage)

    def wait(self) -> None:
        """Everything has finished already."""

    def launch(self, launch: Launch, grid: Grid, values: Sequence[Any]) -> None:
        def run() -> None:
            self._runs[launch] += 1
            self._run(launch, grid, values, self._runs[launch] % 2 == 0)

        if self._recorded is None:
            run()
        else:
            self._recorded.append(run)

    @contextmanager
    def capture(self) -> Iterator[Callable[[], None]]:
        recorded = self._recorded = []

        def run_all() -> None:
            for run in recorded:
                run()

        try:
            yield run_all
        finally:
            self._recorded = None

    def _run(self, launch: Launch, grid: Grid, values: Sequence[Any], backwards: bool) -> None:
        if grid.empty:
            return
        kernel, said = _loaded(launch), ctypes.create_string_buffer(SAID)
        begin, end = ctypes.c_void_p(), ctypes.c_void_p()
        kernel.shared_memory(ctypes.byref(begin), ctypes.byref(end))
        declared = _Range(begin, (end.value or 0) - (begin.value or 0))
        if broken := [name for name, kept in _limits(grid, declared.size).items() if not kept]:
            raise KernelError(f"{launch.name}: no GPU has {broken[0]}: {grid}")
        words = [np.array(value) for value in values]  # keep alive during the call
        parameters = (ctypes.c_void_p * len(words))(*(word.ctypes.data for word in words))
        ranges = [_Range(memory.address, memory.size) for memory in self._memories]
        lasting = [
            ctypes.c_void_p(int(value))
            for argument, value in zip(launch.arguments, values, strict=False)
            if argument.name in launch.lasting
        ]
        addresses = (ctypes.c_void_p * len(lasting))(*lasting)
        _runtime().begins_early(launch.waits, addresses, ctypes.c_size_t(len(lasting)))
        fine = _runtime().run_grid(
            kernel.invoke, parameters, (ctypes.c_uint * 3)(*grid.blocks), grid.threads,
            ctypes.c_size_t(grid.shared), declared, (_Range * len(ranges))(*ranges),
            ctypes.c_size_t(len(ranges)), backwards, said, ctypes.c_size_t(SAID),
        )  # fmt: skip
        if not fine:
            raise KernelError(f"{launch.name}: {_with_line(said.value.decode())}")

    def multiply(self, factors: Factors) -> None:
        if self._recorded is not None:  # CuPy's binding raises during capture
            raise KernelError("no product is recorded")
        f = factors
        x = self._matrix("x", f.x, f.tokens, f.hidden, np.dtype(np.uint16))
        weight = self._matrix("weight", f.weight, f.rows, f.hidden, np.dtype(np.uint16))
        out = self._matrix("out", f.out, f.tokens, f.rows, np.dtype(np.float32))
        if np.shares_memory(out, x) or np.shares_memory(out, weight):
            raise KernelError("a product's out lies over what it is made of")
        wide = (decode_bf16(values).astype(np.float64) for values in (x, weight))
        with np.errstate(over="ignore", invalid="ignore"):
            out[...] = self.sums(*wide)

    def sums(self, x: Array, weight: Array) -> Array:
        """float64 [tokens hidden], [rows hidden] -> [tokens rows]"""
        return np.asarray(x @ weight.T)

    def _matrix(self, name: str, address: int, rows: int, columns: int, kind: Any) -> Array:
        """Memory as an array, which must lie in one buffer."""
        size = rows * columns * kind.itemsize
        where = f"a product's {name} of {size:,} bytes"
        inside = (m.address <= address <= m.address + m.size - size for m in self._memories)
        if not any(inside):
            raise KernelError(f"{where} is not within a buffer")
        if address % kind.itemsize:
            raise KernelError(f"{where} does not begin at a multiple of {kind.itemsize}")
        memory = (ctypes.c_uint8 * size).from_address(address)
        return np.frombuffer(memory, kind).reshape(rows, columns)


def _with_line(said: str) -> str:
    """The message, with the source line in place of an address."""
    if not (found := _SITE.search(said)):
        return said
    address = int(found[1], 16) - 1  # a return address points to the next instruction
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, _, *path = line.split()
        begin, end = (int(word, 16) for word in span.split("-"))
        if begin <= address < end and path and shutil.which("addr2line"):
            inside = hex(address - begin + int(offset, 16))
            command = ["addr2line", "-e", path[0], inside]
            done = child.run(*command)
            return f"{said[: found.start()]} ({Path(done.stdout.split(' ')[0].strip()).name})"
    return said
