"""The calling convention of CPU kernels: a share of the work, as one compiled C function.

A share is `void f(uint64 args, int64 thread, int64 n_threads)`. `args` is the address of an
argument buffer: the arguments in the order of a signature, in 64-bit words. An array is its
address and its dimensions (always C-contiguous), a scalar is one word. So a step can call any
kernel through its address, tests call the very machine code that the engine runs, and a kernel is
compiled once, alone.
"""

import ctypes
import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.runtime.closures import identity
from kernels.cpu.runtime.construction import CALLED
from kernels.cpu.runtime.object_code import Code, Loaded, code_for, is_kept
from kernels.provenance import compiler, fingerprint_of_share
from reference.op import DTYPES, Argument, parse_signature

Words = np.ndarray[Any, np.dtype[np.int64]]
PROTOTYPE = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_int64, ctypes.c_int64)
I64 = ir.IntType(64)


def numba_type(argument: Argument) -> types.Type:
    """The type that a kernel sees: an array of the argument's dtype (bytes for `format`), or a
    scalar."""
    dtype = numba.from_dtype(np.dtype(DTYPES.get(argument.dtype, np.uint8)))
    return types.Array(dtype, len(argument.axes), "C") if argument.axes else dtype


def all_arguments(signature: str) -> tuple[Argument, ...]:
    inputs, outputs = parse_signature(signature)
    return inputs + outputs


@intrinsic(prefer_literal=True)
def arguments(typing, args, signature):
    """The buffer's arguments as a tuple of arrays and scalars, in the signature's order."""
    kinds = [numba_type(a) for a in all_arguments(signature.literal_value)]
    result = types.Tuple(kinds)

    def codegen(context, builder, sig, values):
        words = builder.inttoptr(values[0], I64.as_pointer())
        position = 0

        def next_word() -> Any:
            nonlocal position
            position += 1
            return builder.load(builder.gep(words, [I64(position - 1)]))

        def scalar(kind: Any) -> Any:
            word = next_word()
            return builder.bitcast(word, ir.DoubleType()) if kind == types.float64 else word

        def array(kind: Any) -> Any:
            address, shape = next_word(), [next_word() for _ in range(kind.ndim)]
            element = context.get_data_type(kind.dtype)
            stride = I64(context.get_abi_sizeof(element))
            view = context.make_array(kind)(context, builder)
            view.itemsize, count = stride, I64(1)
            strides: list[Any] = []
            for size in reversed(shape):
                strides.insert(0, stride)
                stride, count = builder.mul(stride, size), builder.mul(count, size)
            view.data = builder.inttoptr(address, element.as_pointer())
            view.shape = cgutils.pack_array(builder, shape)
            view.strides = cgutils.pack_array(builder, strides)
            view.nitems = count
            view.meminfo = cgutils.get_null_value(view.meminfo.type)
            view.parent = cgutils.get_null_value(view.parent.type)
            return view._getvalue()

        parts = [array(k) if isinstance(k, types.Array) else scalar(k) for k in kinds]
        return context.make_tuple(builder, result, parts)

    return result(types.uint64, signature), codegen


@intrinsic
def call_other(typing, args, thread, n_threads):
    """Call the share that this one calls (Share.calls)."""

    def codegen(context, builder, signature, values):
        kind = ir.FunctionType(ir.VoidType(), [I64, I64, I64])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, CALLED), values)
        return context.get_dummy_value()

    return types.void(types.uint64, types.intp, types.intp), codegen


def pack_words(signature: str, values: Mapping[str, Any]) -> Words:
    """The argument buffer for these arrays and scalars; they must outlive it."""
    words: list[int] = []
    for argument in all_arguments(signature):
        value = values[argument.name]
        if argument.axes:
            if not value.flags.c_contiguous:
                raise ValueError(f"{argument.name}: want a C-contiguous array, got a strided view")
            words += [value.ctypes.data, *value.shape]
        else:
            words.append(scalar_word(argument, value))
    return np.array(words, np.int64)


def scalar_word(argument: Argument, value: Any) -> int:
    """A scalar as a word of an argument buffer."""
    return int(np.float64(value).view(np.int64)) if argument.dtype == "f64" else int(value)


@njit(inline="always")
def part(count, thread, n_threads):
    """This thread's contiguous share [first, last) of `count` items."""
    return count * thread // n_threads, count * (thread + 1) // n_threads


class Share:
    """A kernel's work share: compiled when first needed, stored on disk by its fingerprint.

    The function may close over tags (types) and compiled functions that specialise it. It is
    constructed when first used: a process needs few of all that exist. It may call one other share,
    by call_other: it is then compiled once for all that it may call.
    """

    def __init__(
        self,
        make: Callable[[], Callable[..., None]],
        signature: str,
        format: str = "",
        calls: "Share | None" = None,
    ) -> None:
        self._make, self.signature, self.format, self.calls = make, signature, format, calls

    @cached_property
    def function(self) -> Callable[..., None]:
        return self._make()

    @cached_property
    def name(self) -> str:
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        return f"{name}[{self.format}]" if self.format else name

    def __repr__(self) -> str:
        return f"Share({self.name})"

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the kernel's source with all it calls, and of its signature."""
        return fingerprint_of_share(self.function, self.name, self.signature)

    @cached_property
    def key(self) -> str:
        """sha256 of everything that its machine code depends on."""
        words = (self.fingerprint, identity(self.function), compiler())
        return hashlib.sha256("\0".join(words).encode()).hexdigest()

    @cached_property
    def code(self) -> Code:
        """Its machine code, compiled now or before; this very code is loaded."""
        return code_for(self.name, self.key, self.function, self.calls is not None)

    @cached_property
    def _loaded(self) -> Loaded:
        return Loaded(self.code, self.calls.address if self.calls else 0)

    def compile(self) -> None:
        """Compile now, or load what was compiled before."""
        _ = self._loaded

    @property
    def is_kept(self) -> bool:
        """Whether its machine code is on disk, and only has to be loaded."""
        return is_kept(self.key)

    @property
    def address(self) -> int:
        return self._loaded.address

    @cached_property
    def _entry(self) -> Any:
        return PROTOTYPE(self.address)

    def __call__(self, args: Words, thread: int = 0, n_threads: int = 1) -> None:
        self._entry(args.ctypes.data, thread, n_threads)


def share(signature: str) -> Callable[[Callable[..., None]], Share]:
    """Make `f(args, thread, n_threads)` a Share whose arguments follow the signature."""
    return lambda function: Share(lambda: function, signature)


def by_format(
    make: Callable[[Any], Callable[..., None]], signature: str, tags: Mapping[str, Any]
) -> dict[str, Share]:
    """One share per weight format, of the function that `make` returns for its tag."""
    return {name: Share(partial(make, tag), signature, name) for name, tag in tags.items()}
