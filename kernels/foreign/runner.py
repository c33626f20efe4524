"""The child's program: loads a candidate and calls it over memory shared with the judge.

It is copied into a folder of its own and started there with NumPy and the standard library; none of
our packages is importable. It knows no case, no bound and no result. It signals completion by
stopping itself: the judge reads memory while this process is stopped.

Requests are lines of JSON: first how to confine itself and what to load, then for each turn the
calls, the locations of their arrays, and scalars. Arrays are mapped between inaccessible pages
before a turn begins; inputs are written only after that, so nothing can be computed early.
"""

import ctypes
import inspect
import json
import mmap
import os
import signal
import socket
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

PAGE = mmap.PAGESIZE
NONE, READ, WRITE = 0, 1, 2
SHARED, FIXED = 1, 16
PRESENT = 0x8000 if sys.platform == "linux" else 0  # MAP_POPULATE: no call waits for pages
PRIVATE_ANONYMOUS = 2 | (0x1000 if sys.platform == "darwin" else 0x20)
MOST_SAID = 2000
CONTROL = {"x86_64": (28, 0xFFC0), "aarch64": (0, 0xFFFFFFFF)}  # offset in fenv_t, and its bits
RETURNED: dict[str, Any] = {}  # arrays of the last call,
KEPT: dict[str, Any] = {}  # and of a turn before, each with its bytes

libc = ctypes.CDLL(None, use_errno=True)
libm = ctypes.CDLL("libm.so.6") if sys.platform == "linux" else libc
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def main() -> None:
    *arrays, descriptor = map(int, sys.argv[1:])
    control = socket.socket(fileno=descriptor)
    lines = control.makefile("r")

    def say(kind: str, what: Any) -> None:
        control.sendall((json.dumps([kind, what]) + "\n").encode())

    said = json.loads(lines.readline())
    sys.path[:] = said["path"]
    from sandbox import confine  # type: ignore[import-not-found]

    say("sandbox", list(confine(**said["confine"])))
    sys.meta_path.insert(0, NoRooms(said["rooms"]))
    warnings.simplefilter("ignore")
    try:
        candidate = load(said["load"])
        if "triton" in sys.modules and with_triton(said["load"]["file"]):
            say("runs", "copied" if "triton" in COPIED else "interpreted")
    except BaseException as error:
        say("failed", one_line(error, said["load"]["file"]))
        candidate = None
    before = rounding()
    stop()
    while line := lines.readline():
        assert candidate is not None
        reserved: list[tuple[int, int]] = []
        turn = json.loads(line)
        writable = turn["writable"]
        try:
            calls = [
                candidate(*prepared(call, arrays, reserved, writable)) for call in turn["calls"]
            ]
        except BaseException as error:
            say("failed", one_line(error, said["load"]["file"]))
            calls = []
        stop()
        try:
            for call in calls:
                call()
        except BaseException as error:
            say("failed", one_line(error, said["load"]["file"]))
        stop()
        if complaint := left(reserved) or (CHANGED if rounding() != before else ""):
            say("wrong", complaint)
        del calls
        for address, size in reserved:
            libc.munmap(address, size)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


CHANGED = "it left changed how this processor rounds or what it does with subnormals"


def rounding() -> int:
    """The floating-point control state of this thread."""
    at, bits = CONTROL.get(os.uname().machine, (0, 0))
    state = (ctypes.c_uint32 * 64)()
    if bits and hasattr(libm, "fegetenv"):
        libm.fegetenv(state)
    return state[at // 4] & bits


def left(reserved: list[tuple[int, int]]) -> str:
    """The complaint about returned arrays whose memory has changed since, after later calls: the
    caller owns it."""
    found = next((name for name, (array, was) in KEPT.items() if array.tobytes() != was), "")
    KEPT.clear()
    for name, array in RETURNED.items():
        if not any(begin <= array.ctypes.data < begin + size for begin, size in reserved):
            KEPT[name] = array, array.tobytes()
    RETURNED.clear()
    return found and f"{found} that it had returned changed in a later call"


class NoRooms:
    """Import hook that hides our packages from a candidate, wherever they are installed."""

    def __init__(self, rooms: list[str]) -> None:
        self.rooms = set(rooms)

    def find_spec(self, name: str, *_: object) -> None:
        if name.partition(".")[0] in self.rooms:
            raise ModuleNotFoundError(f"a candidate has no {name}: the judge's packages are hidden")


class Unfit(Exception):  # noqa: N818  it is what was found
    """A complaint of this program itself about a candidate."""


OURS = (__name__, "driver")  # whose messages are sentences


def one_line(error: BaseException, file: str) -> str:
    """An error in one line, with the last line of the candidate's file in its traceback."""
    line = " ".join(str(error).split())
    if type(error).__module__ in OURS:
        return line[:MOST_SAID]
    at = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    where = f" (line {at[-1].lineno}: {at[-1].line})" if at else ""
    return f"{type(error).__name__}: {line}{where}"[:MOST_SAID]


def prepared(
    call: Any, descriptors: list[int], reserved: list[tuple[int, int]], writable: bool
) -> tuple[Any, Any, Any]:
    """The call's input and output arrays by name, and everything else."""
    inputs, outputs = (
        {name: mapped(descriptor, access, place, reserved) for name, place in call[side].items()}
        for side, descriptor, access in (
            ("inputs", descriptors[0], READ | (WRITE if writable else 0)),
            ("outputs", descriptors[1], READ | WRITE),
        )
    )
    return inputs, outputs, call["scalars"]


def mapped(descriptor: int, access: int, place: Any, reserved: list[tuple[int, int]]) -> Any:
    """Map an array where the judge placed it, between inaccessible pages."""
    import numpy as np

    offset, size, begin, dtype, shape = place
    address = libc.mmap(None, size + 2 * PAGE, NONE, PRIVATE_ANONYMOUS, -1, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise MemoryError("no address is left for arrays")
    reserved.append((address, size + 2 * PAGE))
    inside = libc.mmap(address + PAGE, size, access, SHARED | FIXED | PRESENT, descriptor, offset)
    if inside != address + PAGE:
        raise MemoryError(f"arrays cannot be mapped: {os.strerror(ctypes.get_errno())}")
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    memory = (ctypes.c_uint8 * (count * kind.itemsize)).from_address(inside + begin)
    return np.frombuffer(memory, kind, count).reshape(shape)


def load(what: Any) -> Callable[..., Callable[[], None]]:
    """Load the candidate; returns what binds arrays and scalars to a call without parameters."""
    if what["kind"] in ("source", "library"):
        return native(what)
    if what["kind"] == "emulated":
        return emulated(what)
    if what["kind"] == "cubin":
        from driver import launched  # type: ignore[import-not-found]

        return launched(what)  # type: ignore[no-any-return]
    return plain(what)


def native(what: Any) -> Callable[..., Callable[[], None]]:
    """Bind a symbol of a shared library; its arguments are [name, C type]."""
    library = ctypes.CDLL(what["library"])
    try:
        function = library[what["name"]]
    except AttributeError:
        raise Unfit(
            f'the library has no symbol {what["name"]}; C++ needs extern "C" before it'
        ) from None
    function.restype = ctypes.c_int if what["status"] else None
    kinds = [getattr(ctypes, f"c_{kind}") for _, kind in what["arguments"]]
    names = [name for name, _ in what["arguments"]]

    def bound(inputs: Any, outputs: Any, scalars: Any) -> Callable[[], None]:
        arrays = {**inputs, **outputs}
        given = [
            kind(arrays[name].ctypes.data if name in arrays else scalars[name])
            for name, kind in zip(names, kinds, strict=True)
        ]
        if not what["status"]:
            return partial(held, arrays, function, *given)

        def checked() -> None:
            if status := held(arrays, function, *given):
                raise RuntimeError(f"{what['name']} returned {status}")

        return checked

    return bound


def held(arrays: Any, function: Any, *given: Any) -> Any:
    """A call that keeps its arrays alive."""
    return function(*given)


def emulated(what: Any) -> Callable[..., Callable[[], None]]:
    """A CUDA kernel compiled for this CPU, launched by the emulator's library."""
    host = ctypes.CDLL(what["host"], ctypes.RTLD_GLOBAL)
    host.run_grid.restype = ctypes.c_bool
    kernel = ctypes.CDLL(what["library"])
    begin, end = ctypes.c_void_p(), ctypes.c_void_p()
    kernel.shared_memory(ctypes.byref(begin), ctypes.byref(end))

    class Range(ctypes.Structure):
        _fields_ = [("begin", ctypes.c_void_p), ("size", ctypes.c_size_t)]

    declared = Range(begin, (end.value or 0) - (begin.value or 0))
    kinds = [(name, getattr(ctypes, f"c_{kind}")) for name, kind in what["arguments"]]
    turns = [0]

    def bound(inputs: Any, outputs: Any, scalars: Any) -> Callable[[], None]:
        arrays = {**inputs, **outputs}
        words = [
            kind(arrays[name].ctypes.data if name in arrays else scalars[name])
            for name, kind in kinds
        ]
        parameters = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
        *blocks, threads, _, _, shared = scalars["launch"]
        ranges = (Range * len(arrays))(*(Range(a.ctypes.data, a.nbytes) for a in arrays.values()))

        def run() -> None:
            said, turns[0] = ctypes.create_string_buffer(1000), turns[0] + 1
            if 0 in blocks:
                return
            fine = host.run_grid(
                kernel.invoke, parameters, (ctypes.c_uint * 3)(*blocks), threads,
                ctypes.c_size_t(shared), declared, ranges, ctypes.c_size_t(len(ranges)),
                turns[0] % 2 == 0, said, ctypes.c_size_t(1000),
            )  # fmt: skip
            if not fine:
                raise RuntimeError(said.value.decode(errors="replace"))
            held(arrays, len, words)

        return run

    return bound


def plain(what: Any) -> Callable[..., Callable[[], None]]:
    """A Python function: its parameters are named like inputs, outputs, sizes or scalars, or
    `given` in order; outputs without a parameter are returned."""
    function, positional = found(what)
    if hasattr(function, "run") and type(function).__module__.startswith("triton."):
        raise Unfit(f"{what['name']} is a Triton kernel: name the function that launches it")
    module = sys.modules.get(getattr(function, "__module__", "")) or sys.modules.get("candidate")
    style = what["arrays"] or (style_of(module) if module else "numpy")
    wanted = what["given"] or named(function, what)
    positional = positional or bool(what["given"])
    known = [*what["inputs"], *what["outputs"], *what["scalars"]]
    if strange := [name for name in wanted if name.isidentifier() and name not in known]:
        raise Unfit(f"its parameter {strange[0]!r} is none of {', '.join(known)}")
    returned = [name for name in what["outputs"] if name not in wanted]
    into, views = STYLES[style], style not in COPIED  # each call makes its own copies
    if style == "jax" and len(returned) < len(what["outputs"]):
        raise Unfit("arrays of jax cannot be written to: return the outputs")

    def bound(inputs: Any, outputs: Any, scalars: Any) -> Callable[[], None]:
        kept = {**inputs, **outputs}
        ready = [into(kept[n]) if n in kept else scalars[n] for n in wanted] if views else []

        def run() -> None:
            given = ready or [into(kept[n]) if n in kept else scalars[n] for n in wanted]
            by_name = zip(wanted, given, strict=True)
            result = function(*given) if positional else function(**dict(by_name))
            back = zip(wanted, given, strict=True) if style == "triton" and not views else ()
            for name, value in back:
                if name in outputs:
                    put(name, outputs[name], value)
                elif name in inputs and value.cpu().numpy().tobytes() != inputs[name].tobytes():
                    raise Unfit(f"it wrote to its input {name}")
            if not returned:
                return
            results = result if isinstance(result, tuple | list) else (result,)
            if isinstance(result, dict):
                results = tuple(result[name] for name in returned)
            if len(results) != len(returned):
                raise ValueError(f"it returned {len(results)} arrays, not {', '.join(returned)}")
            for name, value in zip(returned, results, strict=True):
                RETURNED[name] = put(name, outputs[name], value)

        return run

    return bound


def named(function: Any, what: Any) -> list[str]:
    """Names of a function's parameters, except those with unknown defaults."""
    try:
        parameters = inspect.signature(getattr(function, "py_func", function)).parameters
    except (TypeError, ValueError):
        raise Unfit(
            f"{what['name']} has no signature that can be read: say `arguments`, in its order"
        ) from None
    known = {*what["inputs"], *what["outputs"], *what["scalars"]}
    return [
        name
        for name, parameter in parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and (name in known or parameter.default is parameter.empty)
    ]


def found(what: Any) -> tuple[Callable[..., Any], bool]:
    """The function that the file defines, and whether it takes positional arguments only."""
    if what["kind"] == "pickled":
        from numba import cloudpickle

        with open(what["file"], "rb") as file:  # noqa: PTH123
            function: Any = cloudpickle.load(file)
    else:
        module = types.ModuleType("candidate")
        module.__file__ = what["file"]
        sys.modules["candidate"] = module
        with open(what["file"], "rb") as file:  # noqa: PTH123
            source = file.read()
        # An import could take stale bytecode beside the file.
        exec(compile(source, what["file"], "exec"), vars(module))
        function = module
        for part in what["name"].split("."):
            if not hasattr(function, part):
                there = [n for n, v in vars(module).items() if callable(v) and n[0] != "_"]
                known = ", ".join(there) or "no function"
                raise Unfit(f"the file has no {what['name']}; it has {known}")
            function = getattr(function, part)
    if not callable(function):
        raise Unfit(f"{what['name']} is no function")
    return function, hasattr(function, "py_func")


def style_of(module: Any) -> str:
    """The array library that a file seems to want: triton's, torch's or jax's if it imports one of
    them and does not use Numba."""
    names = libraries(module)
    if "numba" in names:
        return "numpy"
    return next((style for style in ("triton", "torch", "jax") if style in names), "numpy")


def libraries(module: Any) -> set[str]:
    """The packages from which a module's names come."""
    return {
        str(said).partition(".")[0]
        for value in vars(module).values()
        for said in (getattr(value, "__name__", ""), getattr(value, "__module__", ""))
    }


def with_triton(file: str) -> bool:
    """Whether the module, or one of its folder that it imports, uses Triton."""
    folder = os.path.dirname(file) + "/"  # noqa: PTH120
    return any(
        "triton" in libraries(module)
        for module in list(sys.modules.values())
        if str(getattr(module, "__file__", "")).startswith(folder)
    )


def to_numpy(array: Any) -> Any:
    return array


def to_torch(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)


def to_jax(array: Any) -> Any:
    import jax

    jax.config.update("jax_enable_x64", True)
    return jax.numpy.array(array)


def to_gpu(array: Any) -> Any:
    """A tensor for Triton: on the GPU, or a view of the memory where its interpreter runs."""
    return to_torch(array) if os.environ.get("TRITON_INTERPRET") == "1" else to_torch(array).cuda()


STYLES: dict[str, Callable[[Any], Any]] = {
    "numpy": to_numpy, "torch": to_torch, "jax": to_jax, "triton": to_gpu,
}  # fmt: skip
COPIED = ("jax",) if os.environ.get("TRITON_INTERPRET") == "1" else ("jax", "triton")


def put(name: str, target: Any, value: Any) -> Any:
    """Copy a returned array to the judge's memory and return that view. A wrong shape or dtype is
    an error, except flat arrays and missing axes of one."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) in ("torch.bfloat16", "torch.float16"):
            value = value.float()
        value = value.numpy()
    elif not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
        value = np.from_dlpack(value)
    value = np.asarray(value)
    if value.shape != target.shape:
        wide, wanted = ([n for n in a.shape if n != 1] for a in (value, target))
        if value.shape != (target.size,) and wide != wanted:
            raise ValueError(f"it returned {name} {list(value.shape)}, not {list(target.shape)}")
        value = value.reshape(target.shape)
    if not np.can_cast(value.dtype, target.dtype, "same_kind"):
        raise ValueError(f"it returned {name} as {value.dtype}, not {target.dtype}")
    np.copyto(target, value, casting="same_kind")
    if target.dtype.kind != "f" and value.dtype != target.dtype and (target != value).any():
        raise ValueError(f"it returned {name} beyond {target.dtype}")
    return value


if __name__ == "__main__":
    main()
