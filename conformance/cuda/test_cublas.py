"""Calls of cuBLAS without GPU or cuBLAS: a stand-in library of our own behind CuPy's binding
multiplies as cuBLAS documents."""

import ctypes
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from kernels.cuda.linear import linear
from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.gpu import Gpu
from kernels.cuda.runtime.product import Factors, Product
from reference.formats.floats import decode_bf16, encode_bf16
from reference.op import Array

cupy = pytest.importorskip("cupy")

# As in cublas_api.h and library_types.h.
OP_N, OP_T, POINTER_MODE_HOST, COMPUTE_32F, GEMM_DEFAULT = 0, 1, 0, 68, -1
TYPES = {0: np.dtype(np.float32), 14: np.dtype(np.uint16)}  # CUDA_R_32F, CUDA_R_16BF
HANDLE, GUARD = 7, 65  # GUARD: elements before and after each matrix


def memory_at(address: int, count: int, kind: np.dtype[Any]) -> Array:
    """`count` elements of memory at this address."""
    return np.frombuffer((ctypes.c_uint8 * (count * kind.itemsize)).from_address(address), kind)


def column_major(address: int, rows: int, columns: int, apart: int, kind: np.dtype[Any]) -> Array:
    """A column-major matrix: element (i, j) at i + j * apart; memory ends with the last."""
    assert apart >= max(1, rows)
    memory = memory_at(address, (columns - 1) * apart + rows, kind)
    itself = (kind.itemsize, apart * kind.itemsize)
    return np.lib.stride_tricks.as_strided(memory, (rows, columns), itself)


class FakeCublas(ModuleType):
    """cupy_backends.cuda.libs.cublas on host memory. `failing` is the error of each product."""

    CUBLAS_OP_N, CUBLAS_OP_T = OP_N, OP_T
    CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE = POINTER_MODE_HOST, 1
    CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT = COMPUTE_32F, GEMM_DEFAULT

    class CUBLASError(RuntimeError):
        pass

    def __init__(self) -> None:
        super().__init__("cublas")
        self.failing, self.made, self.mode = "", 0, -1
        self.streams: list[Any] = []  # streams of the products

    def create(self) -> int:
        self.made += 1
        return HANDLE

    def getVersion(self, handle: int) -> int:  # noqa: N802 - CuPy's name
        assert handle == HANDLE
        return 120903

    def setPointerMode(self, handle: int, mode: int) -> None:  # noqa: N802
        assert handle == HANDLE
        self.mode = mode

    def gemmEx(  # noqa: N802
        self, handle: int, transa: int, transb: int, m: int, n: int, k: int, alpha: int,
        A: int, Atype: int, lda: int, B: int, Btype: int, ldb: int, beta: int,
        C: int, Ctype: int, ldc: int, computeType: int, algo: int,
    ) -> None:  # fmt: skip
        """C = alpha op(A) op(B) + beta C: op(A) is [m, k], op(B) [k, n], C [m, n]."""
        assert (handle, self.mode) == (HANDLE, POINTER_MODE_HOST)
        assert (TYPES[Atype], TYPES[Btype], TYPES[Ctype]) == (np.uint16, np.uint16, np.float32)
        assert (computeType, algo) == (COMPUTE_32F, GEMM_DEFAULT)
        self.streams.append(FakeStream.current)
        if self.failing:
            raise self.CUBLASError(self.failing)
        one, zero = (memory_at(address, 1, np.dtype(np.float32))[0] for address in (alpha, beta))
        a = column_major(A, *((k, m) if transa == OP_T else (m, k)), lda, TYPES[Atype])
        b = column_major(B, *((n, k) if transb == OP_T else (k, n)), ldb, TYPES[Btype])
        c = column_major(C, m, n, ldc, TYPES[Ctype])
        wide_a, wide_b = (decode_bf16(np.ascontiguousarray(x)).astype(np.float64) for x in (a, b))
        product = (wide_a.T if transa == OP_T else wide_a) @ (
            wide_b.T if transb == OP_T else wide_b
        )
        c[...] = one * product + (zero * c if zero else 0)  # C is not read if beta is zero


class FakeStream:
    """CuPy's Stream: inside its `with` it is the current one."""

    current: Any = None

    def __init__(self, non_blocking: bool) -> None:
        assert non_blocking
        self._before: list[Any] = []

    def __enter__(self) -> None:
        self._before.append(FakeStream.current)
        FakeStream.current = self

    def __exit__(self, *_: object) -> None:
        FakeStream.current = self._before.pop()


class FakeDevice:
    """CuPy's Device."""

    def __init__(self, number: int) -> None:
        self.number = number

    def use(self) -> None:
        pass


@contextmanager
def fake_gpu(library: FakeCublas | None) -> Iterator[Gpu]:
    """A Gpu as far as possible without one; without a library its import fails."""
    import cupy_backends.cuda.libs as libs

    properties = {"name": b"made up", "major": 9, "minor": 0}
    name = "cupy_backends.cuda.libs.cublas"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cupy.cuda.runtime, "getDeviceCount", lambda: 1)
        patch.setattr(cupy.cuda.runtime, "getDeviceProperties", lambda _: properties)
        patch.setattr(cupy.cuda, "Device", FakeDevice)
        patch.setattr(cupy.cuda, "Stream", FakeStream)
        patch.setitem(sys.modules, name, library)
        patch.delitem(vars(libs), "cublas", raising=False)
        if library is not None:
            patch.setitem(vars(libs), "cublas", library)
        yield Gpu()


def guarded_operands(rng: np.random.Generator, rows: int, columns: int) -> tuple[Array, Array]:
    """Random bfloat16 numbers, and memory that holds them between GUARD elements of NaN."""
    memory = np.full(rows * columns + 2 * GUARD, 0xFFFF, np.uint16)
    values = encode_bf16(rng.standard_normal((rows, columns), np.float32)).view(np.uint16)
    memory[GUARD:-GUARD] = values.reshape(-1)
    return decode_bf16(values).astype(np.float64), memory


@given(
    tokens=st.integers(1, 40), hidden=st.integers(1, 40), rows=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_product_is_x_times_w_transposed(tokens, hidden, rows, seed):
    """For any sizes the result x W^T is stored in place, and nothing around it is written."""
    rng, library = np.random.default_rng(seed), FakeCublas()
    x, x_memory = guarded_operands(rng, tokens, hidden)
    weight, weight_memory = guarded_operands(rng, rows, hidden)
    out = np.full(tokens * rows + 2 * GUARD, np.nan, np.float32)
    addresses = {
        "scratch": x_memory.ctypes.data + 2 * GUARD,
        "weight": weight_memory.ctypes.data + 2 * GUARD,
        "out": out.ctypes.data + 4 * GUARD,
    }
    shape = {"tokens": tokens, "hidden": hidden, "out": rows}
    with fake_gpu(library) as gpu:
        gpu.multiply(Product(linear.PRODUCT, linear.many).factors(addresses, shape))
        assert library.streams == [gpu.stream]
    found = out[GUARD:-GUARD].reshape(tokens, rows)
    np.testing.assert_allclose(found, x @ weight.T, rtol=1e-6, atol=1e-6)
    assert np.isnan(out[:GUARD]).all()
    assert np.isnan(out[-GUARD:]).all()
    assert FakeStream.current is None


WRONG: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "not-transposed": lambda g: {"transa": OP_N, "lda": g["m"]},
    "both-transposed": lambda g: {"transb": OP_T, "ldb": g["n"]},
    "x-for-the-weight": lambda g: {"A": g["B"], "B": g["A"]},
    "by-rows": lambda g: {
        "m": g["n"], "n": g["m"], "A": g["B"], "B": g["A"], "ldc": g["n"],
    },
    "rows-one-apart-too-many": lambda g: {"ldc": g["ldc"] + 1},
    "one-column-less": lambda g: {"k": g["k"] - 1},
    "added-to-what-was-there": lambda g: {"beta": g["alpha"]},
}  # fmt: skip
NAMES = tuple(inspect.signature(FakeCublas().gemmEx).parameters)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_change_the_result(name):
    """The stand-in is strict enough: each of these wrong arguments changes the result."""
    rng, library = np.random.default_rng(0), FakeCublas()
    x, x_memory = guarded_operands(rng, 11, 5)
    weight, weight_memory = guarded_operands(rng, 7, 5)
    out = np.ones(11 * 7 + 100, np.float32)
    right = library.gemmEx

    def wrong(*given: Any) -> None:
        arguments = dict(zip(NAMES, given, strict=True))
        right(**(arguments | WRONG[name](arguments)))

    factors = Factors(
        x_memory.ctypes.data + 2 * GUARD, weight_memory.ctypes.data + 2 * GUARD, out.ctypes.data,
        11, 5, 7,
    )  # fmt: skip
    library.gemmEx = wrong
    with fake_gpu(library) as gpu:
        gpu.multiply(factors)
    assert not np.allclose(out[:77].reshape(11, 7), x @ weight.T)


def test_the_handle_is_created_once_before_recording():
    """Preparing a kernel creates it; prefetcher for the version or a product makes no other."""
    library = FakeCublas()
    with fake_gpu(library) as gpu:
        assert not library.made
        gpu.prepare(linear.BF16_STAGES[-1])
        assert library.made == 1
        assert gpu.library == "cuBLAS 12.9.3"
        assert library.mode == POINTER_MODE_HOST
    assert library.made == 1


def test_cublas_errors_are_one_line():
    library = FakeCublas()
    library.failing = "CUBLAS_STATUS_NOT_SUPPORTED"
    with fake_gpu(library) as gpu, pytest.raises(DeviceError) as caught:
        gpu.multiply(Factors(0, 0, 0, 9, 5, 7))
    assert str(caught.value) == (
        "cuBLAS 12.9.3 does not multiply 9 tokens of 5 by 7 rows: CUBLAS_STATUS_NOT_SUPPORTED"
    )


def test_missing_cublas_is_reported():
    """The GPU reports that it has no library, and why, if it is asked to multiply."""
    with fake_gpu(None) as gpu:
        assert gpu.library == ""
        with pytest.raises(DeviceError, match=r"^no cuBLAS: [^\n]+$"):
            gpu.multiply(Factors(0, 0, 0, 9, 5, 7))


def test_a_failed_handle_is_reported():
    """The error, such as that memory is exhausted, is one line."""
    library = FakeCublas()

    def create() -> int:
        raise library.CUBLASError("CUBLAS_STATUS_ALLOC_FAILED")

    library.create = create
    with fake_gpu(library) as gpu:
        assert gpu.library == ""
        with pytest.raises(DeviceError, match=r"^no cuBLAS: CUBLAS_STATUS_ALLOC_FAILED$"):
            gpu.prepare(linear.BF16_STAGES[-1])


def test_the_binding_has_these_constants():
    """The types' constants are CuPy's, which it has without the library."""
    runtime = cupy.cuda.runtime
    assert {runtime.CUDA_R_32F: np.float32, runtime.CUDA_R_16BF: np.uint16} == TYPES
    assert_array_equal(sorted(TYPES), [0, 14])
