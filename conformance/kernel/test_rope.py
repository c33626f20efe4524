"""Laws of rotary position embedding."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from conformance.kernel.here import HERE, each, inputs_of, run
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


def heads(seed: int, tokens: int = 4, head_dim: int = 2 * PAIRS) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, 3, head_dim), np.float32)


@each("rope_norm", "rope_neox")
def test_turning_preserves_norms(kernel):
    """A rotation changes no vector's length."""
    x = heads(0)
    out = run(kernel, x=x, rotation=turns(0, 1, 77, 131071))
    assert_allclose(np.linalg.norm(out, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-6)


@each("rope_norm", "rope_neox")
def test_position_zero_is_the_identity(kernel):
    """At position 0 nothing turns, bit for bit."""
    x = heads(1)
    assert_array_equal(run(kernel, x=x, rotation=turns(0, 0, 0, 0)), x)


@each("rope_norm", "rope_neox")
@pytest.mark.parametrize("shift", [1, 100, 4096])
def test_dot_products_see_only_the_distance(kernel, shift):
    """Moving query and key by the same number of positions leaves their product alone."""
    q, k = heads(2, tokens=1), heads(3, tokens=1)

    def product(query: int, key: int) -> np.ndarray:
        turned_q = run(kernel, x=q, rotation=turns(query)).astype(np.float64)
        return np.sum(turned_q * run(kernel, x=k, rotation=turns(key)), axis=-1)

    length = np.linalg.norm(q) * np.linalg.norm(k)
    assert_allclose(product(9 + shift, 4 + shift), product(9, 4), atol=1e-6 * length)


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
    x, rotation = heads(5), turns(5, 6, 7, 8)
    order = np.concatenate([np.arange(0, 2 * PAIRS, 2), np.arange(1, 2 * PAIRS, 2)])
    reordered = run(neox, x=np.ascontiguousarray(x[..., order]), rotation=rotation)
    assert_array_equal(run(kernel, x=x, rotation=rotation)[..., order], reordered)


@each("rope_norm", "rope_neox")
def test_dimensions_without_a_frequency_pass(kernel):
    """What lies beyond the turned pairs is copied, bit for bit."""
    x = heads(6, head_dim=2 * PAIRS + 8)
    out = run(kernel, x=x, rotation=turns(1, 2, 3, 4))
    assert_array_equal(out[..., 2 * PAIRS :], x[..., 2 * PAIRS :])


@each("rope_norm", "rope_neox")
def test_a_token_turns_alone(kernel):
    """Tokens in a batch turn as they do one by one, bit for bit."""
    inputs = inputs_of(kernel, tokens=7, heads=3, head_dim=64, pairs=32)
    together = run(kernel, **inputs)
    for t in range(7):
        one = {name: value[t : t + 1] for name, value in inputs.items()}
        assert_array_equal(run(kernel, **one), together[t : t + 1])


@each("rotation")
def test_rotations_are_exact_where_float32_angles_are_not(kernel):
    """At position 131071 cosine and sine still have all their bits."""
    out = run(kernel, positions=np.array([131071], np.int32), frequencies=np.ones(1), magnitude=1.0)
    assert_array_equal(out[0, 0], np.float32([np.cos(131071.0), np.sin(131071.0)]))


@each("rotation")
def test_magnitude_scales_cosines_and_sines(kernel):
    """A magnitude of 2 doubles the rotation, bit for bit."""
    inputs = inputs_of(kernel, tokens=7, pairs=32)
    once, twice = (run(kernel, **{**inputs, "magnitude": m}) for m in (1.0, 2.0))
    assert_array_equal(twice, 2 * once)
