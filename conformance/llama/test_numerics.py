"""`numerics="fast"`: floats are rounded to bfloat16, only if requested."""

import numpy as np
import pytest

from conformance.llama.peers.compare import nmse
from conformance.support.machine_kernels import HERE
from engine import Engine
from engine.compile.executable import ByTokens
from kernels.kernel import PROMPT

FAST = [kernel for kernel in HERE if kernel.numerics == "fast"]
OF_BLOCKS = [k for k in FAST if k.target == "cpu" and k.fewest == PROMPT]
TEXT = "Once upon a time there was a little girl. She had a red ball."
# an estimate, not a bound: rounding to eight bits is off by 2^-9 at most, by a third of its square
# on average, in both factors of each product, and what some fifty linear layers make of it adds up
GAP = 50 * 2 * (2.0**-9) ** 2 / 3


def kernels_of(engine):
    return {step.kernel for step in engine.model.plan.steps}


@pytest.mark.skipif(
    all(k.target == "cuda" for k in FAST), reason="this CPU has no fast form of any kernel"
)
def test_fast_numerics_are_close_to_exact():
    """The logits of a text differ, by no more than bfloat16's rounding makes likely."""
    with Engine.load("story-f16") as exact, Engine.load("story-f16", numerics="fast") as fast:
        assert kernels_of(fast) & set(FAST)
        tokens = exact.encode(TEXT)
        assert 0 < nmse(fast.logits(tokens), exact.logits(tokens)) < GAP


def test_exact_numerics_take_no_fast_kernel():
    """Rounded weights are only used on request."""
    for name in ("story-f16", "story-q8_0"):
        with Engine.load(name) as exact:
            assert not kernels_of(exact) & set(FAST)
            assert not isinstance(exact.model.executable, ByTokens)


def numerics_of(engine, tokens):
    return {step.kernel.numerics for step in engine.model.plan_for(tokens).steps}


@pytest.mark.skipif(not OF_BLOCKS, reason="this CPU has no fast form of weights in blocks")
def test_only_prompts_run_blocks_in_bfloat16():
    """A step of few tokens has the bits of exact numerics, a larger one is close, and later steps
    read the cache that the prompt wrote."""
    with Engine.load("story-q8_0") as exact, Engine.load("story-q8_0", numerics="fast") as fast:
        assert numerics_of(fast, PROMPT - 1) == {"exact"}
        assert "fast" in numerics_of(fast, PROMPT)
        tokens = (exact.encode(TEXT) * 9)[: 3 * PROMPT]
        few = tokens[: PROMPT - 1]
        assert (exact.logits(few) == fast.logits(few)).all()
        assert 0 < nmse(fast.logits(tokens), exact.logits(tokens)) < GAP
        after = []
        for engine in (exact, fast):
            engine.reset()
            engine.model.evaluate(tokens, 0)
            after.append(engine.model.evaluate(few, len(tokens)).copy())
        assert not (after[0] == after[1]).all()


@pytest.mark.skipif(not OF_BLOCKS, reason="this CPU has no fast form of weights in blocks")
def test_batches_smaller_than_a_prompt_need_no_second_plan():
    with Engine.load("story-q8_0", numerics="fast", batch=PROMPT - 1) as engine:
        assert not isinstance(engine.model.executable, ByTokens)
        assert np.isfinite(engine.logits(engine.encode(TEXT) * 3)).all()
