"""`numerics="fast"`: floats rounded to bfloat16, only where that is asked for."""

import numpy as np
import pytest

from conformance.kernel.here import HERE
from engine import Engine
from engine.config import ModelError

FAST = [kernel for kernel in HERE if kernel.numerics == "fast"]
TEXT = "Once upon a time there was a little girl. She had a red ball."
# an estimate, not a bound: rounding to eight bits is off by 2^-9 at most, by a third of its square
# on average, in both factors of each product, and what some fifty linear layers make of it adds up
GAP = 50 * 2 * (2.0**-9) ** 2 / 3


def kernels_of(engine):
    return {step.kernel for step in engine.model.plan.steps}


@pytest.mark.skipif(not FAST, reason="this CPU has no fast form of any kernel")
def test_fast_numerics_stay_near_the_exact_ones():
    """The logits of a text differ, by no more than bfloat16's rounding makes likely."""
    with Engine.load("story-f16") as exact, Engine.load("story-f16", numerics="fast") as fast:
        assert kernels_of(fast) & set(FAST)
        tokens = exact.encode(TEXT)
        want, got = (engine.logits(tokens).astype(np.float64) for engine in (exact, fast))
    nmse = ((got - want) ** 2).sum() / (want**2).sum()
    assert 0 < nmse < GAP


def test_exact_numerics_take_no_fast_kernel():
    """Nobody gets rounded weights who did not ask for them, and 8-bit weights have no fast form."""
    with Engine.load("story-f16") as exact, Engine.load("story-q8_0", numerics="fast") as quantised:
        assert not (kernels_of(exact) | kernels_of(quantised)) & set(FAST)


def test_unknown_numerics_are_refused():
    """A word that is neither names both."""
    with pytest.raises(ModelError, match="numerics is 'quick': want exact or fast"):
        Engine.load("story", numerics="quick")
