"""Tiles of linear on the emulator: a token has the same bits in any batch."""

import numpy as np
import pytest

from conformance.cuda.emulator import Emulator, compiler
from kernels.cuda.linear.linear import LEAST_OF_128, PACKS, PARTS
from kernels.cuda.runtime.call import bind
from kernels.cuda.runtime.current import taking_the_place
from kernels.cuda.table import CUDA_KERNELS
from reference.op import Array

AT_ONCE = {"Q4_0", "F16"}  # in quick runs
HIDDEN, OUT = 1280, 40  # 40 blocks, so that some chains have two; rows beyond a warp's 32
FORMATS = [
    pytest.param(f, marks=[] if f in AT_ONCE else pytest.mark.exhaustive) for f in (*PACKS, *PARTS)
]


@pytest.mark.skipif(not compiler(), reason="no C++ compiler")
@pytest.mark.parametrize("format", FORMATS)
def test_batched_tokens_have_the_bits_of_each_alone(format):
    """Tokens have the same bits in tiles of 64 and 128 as alone."""
    wanted = "linear", "tensor" if format in PARTS else "generic", format
    kernel = next(k for k in CUDA_KERNELS if (k.op, k.variant, k.format) == wanted)
    tokens = LEAST_OF_128.default + 2
    case = kernel.spec.case({"tokens": tokens, "hidden": HIDDEN, "out": OUT}, "normal", 1, format)
    inputs = kernel.spec.make(case)

    def product(x: Array) -> Array:
        out = np.full((len(x), OUT), np.nan, np.float32)
        bind(kernel, {**inputs, "x": np.ascontiguousarray(x)}, {"out": out})()
        return out

    x, some = inputs["x"], [0, 17, tokens - 1]
    with taking_the_place(Emulator()):
        wide, narrow = product(x)[some], product(x[-20:])
        alone = np.concatenate([product(x[i : i + 1]) for i in some])
    np.testing.assert_array_equal(wide.view(np.uint32), alone.view(np.uint32))
    np.testing.assert_array_equal(narrow[-1].view(np.uint32), alone[-1].view(np.uint32))


@pytest.mark.skipif(not compiler(), reason="no C++ compiler")
def test_emulated_tensor_cores_round_like_an_h200():
    """Weights below 2^-14 are aligned as if they were that: an H200 gave these bits."""
    kernel = next(k for k in CUDA_KERNELS if k.name == "linear/cuda/tensor/F16")
    case = kernel.spec.case({"tokens": 3, "hidden": 256, "out": 257}, "edge", 25, "F16")
    out = np.empty((3, 257), np.float32)
    with taking_the_place(Emulator()):
        bind(kernel, kernel.spec.make(case), {"out": out})()
    assert out[0, 236] == np.float32(-0.580316305)  # exactly -0.58035321
