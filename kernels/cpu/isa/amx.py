"""AMX: matrix products of tiles, eight of them with 16 rows of 64 bytes each.

Every operation takes a tag first, `AMX` for the hardware or `EMULATED` for the same in portable
code (amx_emulated.py), and then the state, which only the latter uses. A share goes

    state = tile_state(tag)
    configure(tag, state, FULL)
    tile_zero(tag, state, 0)
    tile_load(tag, state, 1, x, offset, stride)
    ...
    release(tag, state)

Tiles are numbered by literals. The configuration is the thread's own: a share loads it first and
releases it last. A product c += a b takes a as [rows][depth] and b as [depth][columns] groups of
four bytes (four int8 or two bfloat16, consecutive along the inner dimension), and c as
[rows][columns] of int32 or float32.
"""

import ctypes
import platform
import sys
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model
from numba.np.arrayobj import populate_array

from kernels.cpu.isa import amx_emulated
from kernels.cpu.isa.simd import address_of, call_llvm
from kernels.provenance import cpu_features

FEATURES = frozenset({"amx-tile", "amx-int8", "amx-bf16"})
I8, I64 = ir.IntType(8), ir.IntType(64)
BYTES = types.Array(types.uint8, 1, "C")

ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA = 158, 0x1023, 18  # Linux on x86-64


@cache
def request() -> bool:
    """Whether this process may use AMX: the CPU has it and Linux, asked once, grants it.

    All threads get the permission, existing and new ones, and so do children by fork but not those
    by exec. Linux refuses where a thread's alternate signal stack is too small for tiles.
    """
    if not (sys.platform == "linux" and platform.machine() == "x86_64"):
        return False
    if "amx-tile" not in cpu_features():
        return False
    words = map(ctypes.c_long, (ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA))
    return bool(ctypes.CDLL(None).syscall(*words) == 0)


def tile_config(*shapes: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The 64 bytes for configure(): (rows, bytes of a row) of tile 0 and on, up to (16, 64)."""
    if len(shapes) > 8:
        raise ValueError(f"tile_config: {len(shapes)} tiles, and there are 8")
    config = np.zeros(64, np.uint8)
    config[0] = 1
    for t, (rows, row_bytes) in enumerate(shapes):
        if not (1 <= rows <= 16 and 1 <= row_bytes <= 64):
            raise ValueError(f"tile {t}: {rows} rows of {row_bytes} bytes, want at most 16 of 64")
        config[48 + t], config[16 + 2 * t] = rows, row_bytes
    return config


FULL = tile_config(*[(16, 64)] * 8)


class Tiles(types.Type):
    """Which implementation runs the tiles, as a compile-time argument."""

    def __init__(self, form: str) -> None:
        self.form = form
        super().__init__(name=f"tiles.{form}")


register_model(Tiles)(models.OpaqueModel)
AMX, EMULATED = Tiles("amx"), Tiles("emulated")


def _byte_array(context: Any, builder: Any, data: Any, size: int) -> Any:
    """A uint8 array of memory without an owner."""
    array = context.make_array(BYTES)(context, builder)
    data = builder.bitcast(data, I8.as_pointer())
    populate_array(array, data, [I64(size)], [I64(1)], I64(1), meminfo=None)
    return array._getvalue()


@intrinsic
def tile_state(typing, tag):
    """The state of eight tiles, on the stack of the calling function, with its lifetime."""
    size = amx_emulated.STATE_BYTES if tag.instance_type == EMULATED else 0

    def codegen(context, builder, signature, values):
        memory = cgutils.alloca_once(builder, ir.ArrayType(I8, size))
        cgutils.memset(builder, memory, I64(size), 0)
        return _byte_array(context, builder, memory, size)

    return BYTES(tag), codegen


def _perform(
    context: Any,
    builder: Any,
    tag: Any,
    instruction: str,
    emulation: Any,
    state: Any,
    tiles: tuple[int, ...] = (),
    memory: tuple[Any, ...] = (),
) -> Any:
    """Lower to the instruction, or call its emulation: the same operands in the same order.

    `state` is the state's type and value; `memory` a pointer to bytes and, for rows, their stride.
    """
    if tag.instance_type == AMX:
        operands = [*map(I8, tiles), *memory]
        call_llvm(builder, f"llvm.x86.{instruction}", ir.VoidType(), operands)
    else:
        kinds, values = [state[0]], [state[1]]
        kinds += [types.intp] * len(tiles)
        values += map(I64, tiles)
        if memory:
            kinds += [BYTES, types.intp][: len(memory)]
            values += [_byte_array(context, builder, memory[0], 2**62), *memory[1:]]
        context.compile_internal(builder, emulation.py_func, types.void(*kinds), values)
    return context.get_dummy_value()


@intrinsic
def configure(typing, tag, state, config):
    """Load the 64 bytes of tile_config() and clear every tile; required first."""

    def codegen(context, builder, signature, values):
        pointer = address_of(context, builder, config, [values[2], I64(0)], I8)
        operation = tag, "ldtilecfg", amx_emulated.configure
        return _perform(context, builder, *operation, (state, values[1]), memory=(pointer,))

    return types.void(tag, state, config), codegen


@intrinsic
def release(typing, tag, state):
    """Release the tiles; required last."""

    def codegen(context, builder, signature, values):
        operation = tag, "tilerelease", amx_emulated.release
        return _perform(context, builder, *operation, (state, values[1]))

    return types.void(tag, state), codegen


def _numbers(*tiles: Any) -> tuple[int, ...]:
    numbers = [t.literal_value for t in tiles if isinstance(t, types.IntegerLiteral)]
    if len(set(numbers) & set(range(8))) < len(tiles):
        raise TypingError(f"tiles {tiles}: want different literals from 0 to 7")
    return tuple(numbers)


@intrinsic(prefer_literal=True)
def tile_zero(typing, tag, state, tile):
    """Clear a tile."""
    numbers = _numbers(tile)

    def codegen(context, builder, signature, values):
        operation = tag, "tilezero", amx_emulated.zero
        return _perform(context, builder, *operation, (state, values[1]), numbers)

    return types.void(tag, state, tile), codegen


def _transfer(name: str, instruction: str, emulation: Any, doc: str) -> Any:
    """An intrinsic that moves a tile from or to the rows at array[offset:]."""

    def operation(typing, tag, state, tile, array, offset, stride):
        numbers = _numbers(tile)

        def codegen(context, builder, signature, values):
            pointer = address_of(context, builder, array, values[3:5], I8)
            what = tag, instruction, emulation, (state, values[1]), numbers
            return _perform(context, builder, *what, (pointer, values[5]))

        return types.void(tag, state, tile, array, types.intp, types.intp), codegen

    operation.__doc__, operation.__name__ = doc, name
    return intrinsic(prefer_literal=True)(operation)


tile_load = _transfer(
    "tile_load",
    "tileloadd64",
    amx_emulated.load_rows,
    "A tile's rows from array[offset:], `stride` bytes apart; `offset` counts elements.",
)
tile_store = _transfer(
    "tile_store",
    "tilestored64",
    amx_emulated.store_rows,
    "A tile's rows to array[offset:], `stride` bytes apart; `offset` counts elements.",
)


def _product(name: str, instruction: str, emulation: Any, doc: str) -> Any:
    """An intrinsic c += a b of three different tiles."""

    def operation(typing, tag, state, c, a, b):
        numbers = _numbers(c, a, b)

        def codegen(context, builder, signature, values):
            what = tag, instruction, emulation, (state, values[1]), numbers
            return _perform(context, builder, *what)

        return types.void(tag, state, c, a, b), codegen

    operation.__doc__, operation.__name__ = doc, name
    return intrinsic(prefer_literal=True)(operation)


tile_dot_i8 = _product(
    "tile_dot_i8", "tdpbssd", amx_emulated.dot_i8, "c += a b, int8 by int8, exact in int32."
)
tile_dot_u8_i8 = _product(
    "tile_dot_u8_i8", "tdpbusd", amx_emulated.dot_u8_i8, "c += a b, uint8 by int8, exact in int32."
)
tile_dot_bf16 = _product(
    "tile_dot_bf16",
    "tdpbf16ps",
    amx_emulated.dot_bf16,
    "c += a b, bfloat16 by bfloat16; amx_emulated.dot_bf16 says how float32 sums are rounded.",
)
