"""AMX tiles: the emulation compared with NumPy, and the hardware, if any, with the emulation."""

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError
from numpy.testing import assert_array_equal

from conformance.support.amx import by_tiles, operands
from conformance.support.cross_compile import python_for
from conformance.support.special_numbers import flush, same_numbers
from kernels.cpu.isa import amx
from kernels.cpu.isa.amx import (
    AMX,
    EMULATED,
    FULL,
    configure,
    release,
    request,
    tile_config,
    tile_dot_bf16,
    tile_dot_i8,
    tile_dot_u8_i8,
    tile_load,
    tile_state,
    tile_store,
    tile_zero,
)
from reference.op import Array

pytestmark = [] if request() else pytest.mark.exhaustive
SIZES = [(1, 1, 1), (2, 3, 5), (5, 16, 1), (16, 1, 7), (7, 15, 16), (16, 16, 16)]
X86 = llvm.get_process_triple().startswith("x86_64")


def bf16_product(a: Array, b: Array, c: Array) -> Array:
    """TDPBF16PS by the manual: two chains of fused steps, whose sum is added to c."""
    x, y = (flush((v.astype(np.uint32) << 16).view(np.float32)).astype(np.float64) for v in (a, b))
    chains = np.zeros((2, *c.shape), np.float32)
    with np.errstate(all="ignore"):
        for k in range(a.shape[1]):
            step = np.outer(x[:, k], y[k]) + chains[k % 2]
            chains[k % 2] = flush(step.astype(np.float32))
        return flush(flush(c) + flush(chains[0] + chains[1]))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(("kind", "operation"), [("i8", tile_dot_i8), ("u8", tile_dot_u8_i8)])
def test_emulated_products_of_bytes_are_exact(kind, operation, size, seed):
    """Products are exact modulo 2^32, and nothing around c is written."""
    a, b, c = operands(kind, *size, seed)
    want = (c + a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    assert_array_equal(by_tiles(EMULATED, operation, a, b, c), want)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_emulated_products_of_bfloat16_round_as_the_manual_says(size, seed):
    """Bits are the manual's, also with infinities, NaN and subnormals from seed 1 on."""
    a, b, c = operands("bf16", *size, seed)
    same_numbers(by_tiles(EMULATED, tile_dot_bf16, a, b, c), bf16_product(a, b, c))


LEAST = 2.0**-126  # the smallest normal number


@pytest.mark.parametrize(
    ("products", "c", "want"),
    [
        pytest.param([LEAST / 2, 0, LEAST, 0], 0, LEAST, id="even"),
        pytest.param([0, LEAST / 2, 0, LEAST], 0, LEAST, id="odd"),
        pytest.param([1.5 * LEAST, -LEAST, 0, 0], LEAST, LEAST, id="their sum"),
        pytest.param([1.5 * LEAST, 0, 0, 0], LEAST / 2, 1.5 * LEAST, id="c"),
        pytest.param([1.5 * LEAST, 0, 0, 0], -LEAST, 0, id="the result"),
    ],
)
def test_every_step_of_a_bfloat16_product_flushes(products, c, want):
    """A subnormal intermediate result counts as zero at every step."""
    half = np.float32(2.0**-63)
    a, b = np.float32([products]) * (1 / half), np.full((4, 1), half)
    a, b = ((x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b))
    out = by_tiles(EMULATED, tile_dot_bf16, a, b, np.float32([[c]]))
    same_numbers(out, np.float32([[want]]))


@njit
def use_all_tiles(source, target):
    """Eight tiles at once: each keeps its contents, and cleared ones are zero."""
    state = tile_state(EMULATED)
    configure(EMULATED, state, FULL)
    tile_load(EMULATED, state, 0, source, 0 * 256, 64)
    tile_load(EMULATED, state, 1, source, 1 * 256, 64)
    tile_load(EMULATED, state, 2, source, 2 * 256, 64)
    tile_load(EMULATED, state, 3, source, 3 * 256, 64)
    tile_load(EMULATED, state, 4, source, 4 * 256, 64)
    tile_load(EMULATED, state, 5, source, 5 * 256, 64)
    tile_load(EMULATED, state, 6, source, 6 * 256, 64)
    tile_load(EMULATED, state, 7, source, 7 * 256, 64)
    tile_zero(EMULATED, state, 2)
    tile_store(EMULATED, state, 0, target, 7 * 256, 64)
    tile_store(EMULATED, state, 1, target, 6 * 256, 64)
    tile_store(EMULATED, state, 2, target, 5 * 256, 64)
    tile_store(EMULATED, state, 3, target, 4 * 256, 64)
    tile_store(EMULATED, state, 4, target, 3 * 256, 64)
    tile_store(EMULATED, state, 5, target, 2 * 256, 64)
    tile_store(EMULATED, state, 6, target, 1 * 256, 64)
    tile_store(EMULATED, state, 7, target, 0 * 256, 64)
    release(EMULATED, state)


def test_eight_tiles_are_independent():
    """Each is its own memory."""
    source = np.arange(2048, dtype=np.int32).reshape(8, 256)
    target = np.full_like(source, -1)
    use_all_tiles(source, target)
    source[2] = 0
    assert_array_equal(target, source[::-1])


def config_with(position: int, value: int) -> Array:
    config = FULL.copy()
    config[position] = value
    return config


@njit
def multiply_all(config, early, late, out):
    """Store zeros to `out` by a product, with a fault if requested."""
    state = tile_state(EMULATED)
    if not early:
        configure(EMULATED, state, config)
    tile_zero(EMULATED, state, 0)
    tile_zero(EMULATED, state, 1)
    tile_zero(EMULATED, state, 2)
    tile_dot_i8(EMULATED, state, 0, 1, 2)
    if late:
        release(EMULATED, state)
    tile_store(EMULATED, state, 0, out, 0, 64)


@pytest.mark.parametrize(
    ("config", "early", "late"),
    [
        pytest.param(FULL, True, False, id="not configured"),
        pytest.param(FULL, False, True, id="released"),
        pytest.param(config_with(0, 2), False, False, id="palette"),
        pytest.param(config_with(5, 1), False, False, id="reserved byte"),
        pytest.param(config_with(48 + 6, 17), False, False, id="17 rows"),
        pytest.param(config_with(16 + 12, 65), False, False, id="65 bytes"),
        pytest.param(config_with(16 + 13, 1), False, False, id="320 bytes"),
        pytest.param(config_with(48 + 6, 0), False, False, id="bytes of no rows"),
        pytest.param(config_with(48 + 0, 15), False, False, id="rows of c"),
        pytest.param(config_with(48 + 2, 15), False, False, id="rows of b"),
        pytest.param(config_with(16 + 2, 60), False, False, id="bytes of a"),
        pytest.param(config_with(16 + 4, 60), False, False, id="bytes of b"),
        pytest.param(tile_config((16, 62), (16, 64), (16, 62)), False, False, id="not by fours"),
        pytest.param(tile_config((16, 64), (16, 64)), False, False, id="no third tile"),
    ],
)
def test_hardware_faults_store_nothing(config, early, late):
    """An emulated kernel that would crash leaves its output unwritten, and is detected."""
    out = np.full((16, 16), 77, np.int32)
    multiply_all(FULL, False, False, out)
    assert_array_equal(out, 0)
    out[:] = 77
    multiply_all(config, early, late, out)
    assert_array_equal(out, 77)


def test_tile_numbers_must_be_distinct_literals():
    """A tile that is not one of eight, or twice in a product, is a compile error."""

    def with_tiles(c: int, a: int, b: int) -> Callable[..., None]:
        @njit
        def multiply():
            tile_dot_i8(EMULATED, tile_state(EMULATED), c, a, b)

        return multiply

    with_tiles(0, 1, 2)()
    for wrong in ((0, 0, 1), (0, 1, 1), (0, 1, 8), (-1, 0, 1)):
        with pytest.raises(TypingError, match="want different literals from 0 to 7"):
            with_tiles(*wrong)()

    @njit
    def any_tile(t):
        tile_zero(EMULATED, tile_state(EMULATED), t)

    with pytest.raises(TypingError, match="want different literals from 0 to 7"):
        any_tile(3)


def test_wrong_shapes_are_refused():
    """tile_config names the tile that is too large, or that there are too many."""
    with pytest.raises(ValueError, match=r"tile 1: 17 rows of 64 bytes, want at most 16 of 64"):
        tile_config((16, 64), (17, 64))
    with pytest.raises(ValueError, match="9 tiles, and there are 8"):
        tile_config(*[(1, 4)] * 9)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux alone has to be asked")
def test_permission_agrees_with_linux(monkeypatch):
    """On a CPU with tiles, permission agrees with the flags that Linux lists."""
    flags = Path("/proc/cpuinfo").read_text()
    monkeypatch.setattr(amx, "cpu_features", lambda: frozenset({"amx-tile"}))
    assert request.__wrapped__() == ("amx_tile" in flags)


@pytest.mark.parametrize("granted", [True, False])
@pytest.mark.parametrize(
    ("machine", "features", "asks"),
    [
        ("x86_64", amx.FEATURES, True),
        ("x86_64", amx.FEATURES - {"amx-int8"}, True),  # bfloat16 takes the same tiles
        ("x86_64", amx.FEATURES - {"amx-bf16"}, True),
        ("x86_64", amx.FEATURES - {"amx-tile"}, False),
        ("aarch64", amx.FEATURES, False),
    ],
)
def test_permission_is_requested_only_with_tiles(machine, features, asks, granted, monkeypatch):
    """Linux is asked on CPUs with any kind of tiles, and only there."""
    calls: list[list[int]] = []

    def syscall(*words: Any) -> int:
        calls.append([word.value for word in words])
        return 0 if granted else -1

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(amx, "cpu_features", lambda: features)
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(syscall=syscall))
    assert request.__wrapped__() == (asks and granted)
    assert calls == [[158, 0x1023, 18]] * asks


@pytest.mark.skipif(not request(), reason="this CPU lacks AMX, or Linux does not permit it")
@pytest.mark.parametrize(
    ("kind", "operation"),
    [("i8", tile_dot_i8), ("u8", tile_dot_u8_i8), ("bf16", tile_dot_bf16)],
    ids=["i8", "u8", "bf16"],
)
def test_hardware_equals_the_emulation(kind, operation):
    """They agree bit for bit, except for a NaN's payload."""
    for size, seed in itertools.product(SIZES, range(4)):
        a, b, c = operands(kind, *size, seed)
        hardware, emulated = (by_tiles(tag, operation, a, b, c) for tag in (AMX, EMULATED))
        if kind == "bf16":
            same_numbers(hardware, emulated)
        else:
            assert_array_equal(hardware, emulated)


ASSEMBLY = """
from conformance.support.amx import product
from kernels.cpu.isa.amx import AMX, tile_dot_bf16, tile_dot_i8, tile_dot_u8_i8
for operation in (tile_dot_i8, tile_dot_u8_i8, tile_dot_bf16):
    kernel = product(AMX, operation)
    kernel.compile("void(u1[::1], i1[:,::1], i8, i1[:,::1], i8, i4[:,::1], i8)")
    print(*kernel.inspect_asm().values())
"""


@pytest.mark.skipif(not X86, reason="this is no x86-64")
def test_operations_compile_to_amx_instructions():
    """Compiled for a CPU with AMX, on any CPU, each operation is its instruction, in order."""
    text = python_for("sapphirerapids", amx.FEATURES, ASSEMBLY)
    wanted = ["tileloadd", "tilestored", "tdp", "ldtilecfg", "tilerelease"]
    lines = [line.split("#")[0].split() for line in text.splitlines()]
    found = [line for line in lines if line and line[0].startswith(tuple(wanted))]
    products = [line for line in found if line[0].startswith("tdp")]
    assert products == [
        [name, "%tmm7,", "%tmm0,", "%tmm3"] for name in ("tdpbssd", "tdpbusd", "tdpbf16ps")
    ]
    once = ["ldtilecfg", *["tileloadd"] * 3, "tdp", "tilestored", "tilerelease"]
    names = ["tdp" if line in products else line[0] for line in found]
    assert names == once * 3
