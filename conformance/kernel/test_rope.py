"""Laws of rotary position embedding that take more than one kernel."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from conformance.support.here import HERE, each, run
from reference.rope_frequencies import plain

ROTATION = next(kernel for kernel in HERE if kernel.op == "rotation")
PAIRS = 16


def turns(*positions: int) -> np.ndarray:
    """The rotation of these positions, float32 [tokens, pairs, 2]."""
    return run(
        ROTATION,
        positions=np.array(positions, np.int32),
        frequencies=plain(2 * PAIRS, 1e4),
        magnitude=1.0,
    )


def heads(seed: int, tokens: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, 3, 2 * PAIRS), np.float32)


@each("rope_norm", "rope_neox")
def test_turns_add_up(kernel):
    """Turning by 3 positions and then by 4 is turning by 7."""
    x = heads(4, tokens=1)
    twice = run(kernel, x=run(kernel, x=x, rotation=turns(3)), rotation=turns(4))
    assert_allclose(twice, run(kernel, x=x, rotation=turns(7)), atol=2e-6)


@each("rope_norm")
def test_norm_is_neox_with_its_dimensions_reordered(kernel):
    """The two pairings are one rotation, up to the order of a head's dimensions."""
    own = "rope_neox", kernel.target, kernel.variant
    neox = next(k for k in HERE if (k.op, k.target, k.variant) == own)
    x, rotation = heads(5, tokens=4), turns(5, 6, 7, 131_071)
    order = np.concatenate([np.arange(0, 2 * PAIRS, 2), np.arange(1, 2 * PAIRS, 2)])
    reordered = run(neox, x=np.ascontiguousarray(x[..., order]), rotation=rotation)
    assert_array_equal(run(kernel, x=x, rotation=rotation)[..., order], reordered)
