"""Products by a device's library: what the judge accepts, what the emulator detects, and which
kernels use them."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from conformance.cuda.emulator import Emulator, compiler
from kernels.certificates import Key
from kernels.cuda.formats.packing import Bfloats
from kernels.cuda.linear import linear
from kernels.cuda.runtime.current import taking_the_place
from kernels.cuda.runtime.device import Buffer, upload
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.product import Factors, Product
from kernels.cuda.table import CUDA_KERNELS
from kernels.dispatch import KernelSpec
from kernels.errors import KernelError
from kernels.judge import Verdict, judge
from kernels.trial import sampled
from reference.formats import FORMATS
from reference.formats.floats import decode_bf16, encode_bf16
from reference.op import Array

needs_compiler = pytest.mark.skipif(not compiler(), reason="no C++ compiler for the emulator")

KERNEL = next(k for k in CUDA_KERNELS if (k.variant, k.format) == ("bf16", "F16"))
Sums = Callable[[Array, Array], Array]


class WrongProduct(Emulator):
    """An emulator that multiplies in some other way."""

    def __init__(self, sums: Sums) -> None:
        super().__init__()
        self._sums = sums

    def sums(self, x: Array, weight: Array) -> Array:
        return self._sums(x, weight)


def verdicts(device: Emulator, kernel: CudaKernel = KERNEL) -> list[Verdict]:
    """Verdicts on the op's quick cases of many tokens, until one fails."""
    found = []
    with taking_the_place(device):
        for case in sampled(kernel, 0):
            if linear.many(case.shape):
                found.append(judge(kernel, case))
                if not found[-1].passed:
                    break
    return found


def in_halves(x: Array, weight: Array) -> Array:
    return (x.astype(np.float16) @ weight.T.astype(np.float16)).astype(np.float64)


def bfloat_result(x: Array, weight: Array) -> Array:
    return decode_bf16(encode_bf16((x @ weight.T).astype(np.float32)).view(np.uint16))


def transposed(x: Array, weight: Array) -> Array:
    return (weight @ x.T).reshape(len(x), len(weight))


def by_columns(x: Array, weight: Array) -> Array:
    return x @ weight.reshape(weight.shape[::-1])


WRONG: dict[str, Sums] = {
    "transposed": transposed,
    "the-weight-by-columns": by_columns,
    "the-last-column-lost": lambda x, weight: x[:, :-1] @ weight[:, :-1].T,
    "the-last-row-lost": lambda x, weight: x @ np.where(
        np.arange(len(weight))[:, None] < len(weight) - 1, weight, 0).T,
    "the-last-token-lost": lambda x, weight: np.append(x[:-1], [0 * x[0]], axis=0) @ weight.T,
    "the-first-token-for-all": lambda x, weight: x[:1].repeat(len(x), axis=0) @ weight.T,
    "alpha-of-two": lambda x, weight: 2 * x @ weight.T,
    "sums-of-halves": in_halves,
    "a-result-in-bfloat16": bfloat_result,
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_product_is_rejected(name, record_property):
    with np.errstate(all="ignore"):
        *_, last = verdicts(WrongProduct(WRONG[name]))
    record_property("planted", (f"linear/cuda/bf16/{name}", not last.passed))
    assert not last.passed


@needs_compiler
@pytest.mark.parametrize(
    ("name", "when"),
    [("never", lambda _: False), ("of-more-than-nine", lambda shape: shape["tokens"] > 9)],
)
def test_a_skipped_product_is_rejected(name, when, record_property):
    stages = (*KERNEL.stages[:-1], Product(linear.PRODUCT, when))
    *_, last = verdicts(Emulator(), replace(KERNEL, stages=stages))
    record_property("planted", (f"linear/cuda/bf16/{name}", not last.passed))
    assert not last.passed


def truncated(values: Array, largest: Array) -> Array:
    """Truncate to 24 bits of the largest."""
    unit = np.exp2(np.frexp(largest)[1] - 24.0)
    return np.trunc(values / unit) * unit


def tensor_cores(together: int, *, backwards: bool = False, parts: int = 1) -> Sums:
    """Add this many products and the sum so far at once, all truncated to the precision of the
    largest, and so is the sum; the hidden size is split into parts, which are added at the end."""

    def added(*addends: Array) -> Array:
        every = np.stack(np.broadcast_arrays(*addends))
        total = truncated(every, np.abs(every).max(axis=0)).sum(axis=0)
        return truncated(total, np.abs(total))

    def sums(x: Array, weight: Array) -> Array:
        order = np.arange(x.shape[1])[:: -1 if backwards else 1]
        found = np.zeros((len(x), len(weight)))
        for part in np.array_split(order, parts):
            sum_ = np.zeros_like(found)
            for first in range(0, len(part), together):
                own = part[first : first + together]
                sum_ = added(sum_, *(x[:, k, None] * weight[:, k] for k in own))
            found = added(found, sum_)
        return found

    return sums


@needs_compiler
@pytest.mark.parametrize("sums", [
    tensor_cores(4), tensor_cores(8), tensor_cores(16), tensor_cores(1), tensor_cores(4096),
    tensor_cores(8, backwards=True), tensor_cores(8, parts=3), tensor_cores(1, parts=7),
], ids=["4", "8", "16", "one", "all", "backwards", "three-parts", "seven-parts"])  # fmt: skip
def test_tensor_core_truncation_is_accepted(sums, record_property):
    """The bound allows for truncation and any order of addition."""
    found = verdicts(WrongProduct(sums))
    assert all(verdict.passed for verdict in found), found[-1].failure
    record_property("worst", max(verdict.worst for verdict in found))


def matrices(device: Emulator, tokens: int, hidden: int, rows: int) -> tuple[Factors, Buffer]:
    rng = np.random.default_rng(tokens)
    x, weight = (
        upload(device, encode_bf16(rng.standard_normal((n, hidden), np.float32)).copy())
        for n in (tokens, rows)
    )
    out = device.empty(4 * tokens * rows)
    factors = Factors(x.address, weight.address, out.address, tokens, hidden, rows)
    return factors, Buffer(out.address, out.bytes, (x, weight, out))


def result(device: Emulator, out: Buffer) -> Array:
    found = np.empty(out.bytes // 4, np.float32)
    device.read(out, found)
    return found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tokens": 12}, "a product's x of 72 bytes is not within a buffer"),
        ({"hidden": 4}, "a product's x of 88 bytes is not within a buffer"),
        ({"rows": 8}, "a product's weight of 48 bytes is not within a buffer"),
        ({"x": 2}, "a product's x of 66 bytes is not within a buffer"),
        ({"out": 4}, "a product's out of 308 bytes is not within a buffer"),
        ({"out": -4}, "a product's out of 308 bytes is not within a buffer"),
    ],
)
def test_operands_outside_of_buffers_are_detected(change, words):
    """Sizes that are too large and addresses out of range are detected before any access."""
    device = Emulator()
    factors, out = matrices(device, 11, 3, 7)
    moved = {n: getattr(factors, n) + c if n in ("x", "out") else c for n, c in change.items()}
    with pytest.raises(KernelError, match=words):
        device.multiply(replace(factors, **moved))
    assert np.isnan(result(device, out)).all()


def test_misaligned_and_overlapping_operands_are_detected():
    device = Emulator()
    memory = device.empty(1000)
    good = Factors(memory.address, memory.address + 200, memory.address + 400, 9, 3, 5)
    device.multiply(good)
    with pytest.raises(KernelError, match="x of 54 bytes does not begin at a multiple of 2"):
        device.multiply(replace(good, x=memory.address + 1))
    with pytest.raises(KernelError, match="out of 180 bytes does not begin at a multiple of 4"):
        device.multiply(replace(good, out=memory.address + 402))
    for address in (memory.address + 52, memory.address + 228):
        with pytest.raises(KernelError, match="out lies over what it is made of"):
            device.multiply(replace(good, out=address))


def test_library_products_are_never_recorded():
    """Recording a product is an error, as CuPy forbids cuBLAS during stream capture."""
    device = Emulator()
    factors, out = matrices(device, 9, 5, 6)
    with pytest.raises(KernelError, match="no product is recorded"), device.capture():
        device.multiply(factors)
    device.multiply(factors)
    assert np.isfinite(result(device, out)).all()


@pytest.mark.parametrize(
    "signature",
    [
        "x: u16[tokens hidden], weight: u16[hidden out] -> out: f32[tokens out]",
        "x: u16[tokens hidden], weight: u16[out hidden] -> out: f32[out tokens]",
        "x: f32[tokens hidden], weight: u16[out hidden] -> out: f32[tokens out]",
        "x: u16[tokens hidden], weight: u16[out hidden] -> out: u16[tokens out]",
    ],
)
def test_signatures_declare_layouts_and_types(signature):
    """Other layouts and types are not supported."""
    with pytest.raises(AssertionError, match="x: "):
        Product(signature, linear.many)


def test_sizes_and_addresses_are_passed_by_name():
    product = Product("a: u16[n k], b: u16[m k] -> c: f32[n m]", linear.many)
    addresses = {"a": 1, "b": 2, "c": 3, "d": 4}
    assert product.factors(addresses, {"n": 5, "k": 6, "m": 7}) == Factors(1, 2, 3, 5, 6, 7)


@given(
    rows=st.integers(0, 70),
    hidden=st.sampled_from([1, 2, 31, 1000, 2**16 - 1, 2**16, 2**16 + 1]),
    format=st.sampled_from(["F32", "F16"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_weights_are_rounded_as_the_reference_does(rows, hidden, format, seed):
    """Bits are the reference's for any split into pieces; bytes are counted after rounding."""
    rows = min(rows, 3 * 2**16 // hidden)
    x = np.random.default_rng(seed).standard_normal((rows, hidden), np.float32)
    weight = FORMATS[format].quantise(x)
    packed = Bfloats(format)(weight)
    assert packed.nbytes == Bfloats(format).bytes(*weight.shape)
    expected = FORMATS["BF16"].quantise(FORMATS[format].dequantise(weight))
    assert_array_equal(packed, expected)


class OtherLibrary(Emulator):
    library = "cuBLAS 12.9.3"


class NoLibrary(Emulator):
    library = ""


def test_certificates_bind_the_library():
    """A library's version is in the key of kernels that multiply by it, and of no other."""
    plain = next(k for k in CUDA_KERNELS if (k.op, k.format) == ("linear", "Q4_0"))
    keys = []
    for device in (Emulator(), OtherLibrary()):
        with taking_the_place(device):
            keys.append([Key.of(kernel).digest for kernel in (KERNEL, plain)])
    assert keys[0][0] != keys[1][0]
    assert keys[0][1] == keys[1][1]


def test_other_variants_serve_without_a_library():
    """The library is only loaded if a kernel uses it, since it takes GPU memory."""
    need = KernelSpec("linear", "F16", (("hidden", 64), ("out", 64)))
    assert need.candidates_on(OtherLibrary(), numerics="fast")[0].variant == "bf16"
    assert "bf16" not in {k.variant for k in need.candidates_on(NoLibrary(), numerics="fast")}
    with taking_the_place(NoLibrary()):
        assert KERNEL.missing() == ["cuBLAS"]

    class Never(Emulator):
        @property
        def library(self) -> str:
            raise AssertionError

    assert need.candidates_on(Never())
