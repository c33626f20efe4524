"""Laws of the predictor of active neurons, as the three kernels that the engine runs."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.here import HERE, run
from kernels.call import AnyKernel
from reference.formats import FORMATS
from reference.op import Arguments, Array
from reference.predictor import predictor
from reference.table import OPS

PAIRS = (("F32", "F32"), ("F16", "F16"), ("Q8_0", "Q8_0"), ("F16", "Q4_0"))
TARGETS = sorted({kernel.target for kernel in HERE if kernel.op == "linear"})


def every_pair(test: Callable[..., None]) -> pytest.MarkDecorator:
    """Run a test with both matrices in these formats, on every target."""
    with_pairs = pytest.mark.parametrize("formats", PAIRS, ids="-".join)
    return with_pairs(pytest.mark.parametrize("target", TARGETS)(test))


def serving(op: str, target: str, format: str | None = None) -> AnyKernel:
    """The kernel that does by default."""
    chosen = (op, target, format, "exact")
    return next(k for k in HERE if (k.op, k.target, k.format, k.numerics) == chosen)


def off(kernel: AnyKernel, inputs: Arguments) -> Array:
    """How far the kernel may be from the product of these very inputs. -> [tokens, out]"""
    op = OPS["linear"]
    if kernel.activations == "float32":
        return op.bound(inputs, op.expected(inputs))["out"]
    _, tight, step = op.rounded[kernel.activations](inputs)
    return tight + step


def some(formats: tuple[str, str], seed: int, tokens: int, neurons: int) -> Arguments:
    """p [tokens, 96] and weights of rank 64."""
    rng = np.random.default_rng(seed)
    p = rng.standard_normal((tokens, 96)).astype(np.float32)
    sizes = (64, 96), (neurons, 64)
    fc1, fc2 = (
        FORMATS[kind].like(rng.standard_normal(size).astype(np.float32), rng)
        for kind, size in zip(formats, sizes, strict=True)
    )
    return {"p": p, "fc1": fc1, "fc2": fc2, "formats": formats}


def by_kernels(target: str, inputs: Arguments) -> tuple[Array, Array]:
    """The logits, and how far they may be off: relu is exact and moves nothing farther apart, so
    what fc1's product is off by passes through it and through fc2's magnitudes, and fc2's own
    product adds what it may be off by for what it was given."""
    one, two = (serving("linear", target, kind) for kind in inputs["formats"])
    of_fc1 = {"x": inputs["p"], "weight": inputs["fc1"], "format": inputs["formats"][0]}
    hidden = run(serving("relu", target), x=run(one, **of_fc1))
    of_fc2 = {"x": hidden, "weight": inputs["fc2"], "format": inputs["formats"][1]}
    size = np.abs(FORMATS[inputs["formats"][1]].dequantise(inputs["fc2"])).astype(np.float64)
    return run(two, **of_fc2), off(one, of_fc1) @ size.T + off(two, of_fc2)


@every_pair
@given(seed=st.integers(0, 2**32 - 1), tokens=st.integers(0, 9), neurons=st.integers(1, 70))
def test_three_kernels_are_the_predictor(formats, target, seed, tokens, neurons):
    """Within what the two products' bounds allow."""
    inputs = some(formats, seed, tokens, neurons)
    logits, limit = by_kernels(target, inputs)
    assert (np.abs(logits - predictor(**inputs)) <= limit).all()
