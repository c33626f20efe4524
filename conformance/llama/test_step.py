"""The step compared with the reference transformer: random small LLaMAs of every kind."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import reference.models.transformer as formula
from conformance.support.models.formula import (
    TRIALS,
    all_ops_erring,
    demand_explained,
    distances,
    each_model,
    erring,
    exact,
    furthest,
    logits_of,
    prompt,
)
from conformance.support.models.small_models import Small
from conformance.support.models.steps import loaded
from reference.linear import linear_of_quantised
from reference.op import Array
from reference.quantise_activations import dequantise_activations, quantise_activations


@each_model
@pytest.mark.parametrize("kv_format", ["F32", "F16"])
def test_logits_equal_the_references(small, kv_format, tmp_path):
    """The step's logits are the reference's within the ops' own bounds."""
    tokens = prompt(small)
    got = logits_of(small, tmp_path, tokens, kv_format=kv_format)
    demand_explained(got, small, tokens, kv_format)


def logits_without_flipped_codes(small: Small, tokens: list[int]) -> float:
    """The furthest logit of trials in which every activation rounds to the exact model's int8 code,
    with the trials' own block scales."""
    seen: list[Array] = []

    def note(x: Array, weight: Array, format: str) -> Array:
        q, scale, _ = quantise_activations(x)
        seen.append(q)
        return formula.linear(dequantise_activations(q, scale), weight, format)

    truth = exact(small, tokens, note)
    found = []
    for seed in range(TRIALS):
        rng, kept = np.random.default_rng(seed), iter(seen)

        def wrong(x: Array, weight: Array, format: str, rng: Any = rng, kept: Any = kept) -> Array:
            _, scale, _ = quantise_activations(x)
            x = dequantise_activations(next(kept), scale)
            return erring("linear", rng)(x, weight, format)

        with all_ops_erring(rng, "F32"):
            found.append(distances(exact(small, tokens, wrong), truth)[0])
    return max(found)


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0"])
def test_int8_logits_are_float_tight_without_flipped_codes(format, tmp_path):
    """Unless an activation rounds to another code, which is rare, a token's logits are as close to
    the reference as float kernels': true of most tokens."""
    small = Small(format=format, seed=1)
    tokens = prompt(small)
    error = np.abs(logits_of(small, tmp_path, tokens, kv_format="F32") - exact(small, tokens))
    assert np.median(error.max(axis=1)) <= logits_without_flipped_codes(small, tokens)


@pytest.mark.parametrize("format", ["F32", "Q8_0", "Q4_0"])
def test_portable_kernels_equal_the_reference(format, tmp_path):
    """The fallback variants, which read float activations, compute the same model."""
    small = Small(format=format, head_dim=24)
    tokens = prompt(small)
    got = logits_of(small, tmp_path, tokens, kv_format="F32", variant="scalar")
    with patch("conformance.support.models.formula.is_int8", lambda _: False):
        demand_explained(got, small, tokens)


@pytest.mark.parametrize(("format", "limit"), [("Q8_0", 1e-3), ("Q4_0", 1e-3), ("F16", 1e-6)])
def test_int8_activations_have_a_small_error(format, limit, tmp_path):
    """Against products of float activations the logits lose less than an NMSE of 1e-3: 14 roundings
    a block to 8 bits, each of relative power 2^-16 or so, in two blocks."""
    small = Small(format=format, seed=2)
    tokens = prompt(small)
    truth = exact(small, tokens, formula.linear)
    assert distances(logits_of(small, tmp_path, tokens), truth)[1] <= limit


WRONG_MODELS: dict[str, Callable[[Small], Array]] = {
    "eps": lambda s: exact(s, prompt(s), norm_eps=1e-4),
    "rotary base": lambda s: exact(s, prompt(s), frequencies=s.shape().frequencies * 1.0001),
    "no rotation": lambda s: exact(s, prompt(s), frequencies=s.shape().frequencies * 0),
    "heads grouped otherwise": lambda s: exact(s, prompt(s), kv_heads=s.kv_heads * 2,
                                               heads=s.heads * 2, head_dim=s.head_dim // 2,
                                               frequencies=s.shape().frequencies[::2]),
    "one weight of thousands": lambda s: exact(replace(s, seed=s.seed), prompt(s),
                                               one_weight_off(formula.linear)),
    "activations in int8": lambda s: exact(s, prompt(s), linear_of_quantised),
    "last token": lambda s: exact(s, [*prompt(s)[:-1], (prompt(s)[-1] + 1) % s.vocab]),
}  # fmt: skip


def one_weight_off(linear: Callable[..., Array]) -> Callable[..., Array]:
    """linear with the first element of every matrix larger by a hundredth."""

    def wrong(x: Array, weight: Array, format: str) -> Array:
        values = weight.copy().view(np.float32)
        values[0, 0] *= 1.01
        return linear(x, values.view(np.uint8), format)

    return wrong


@pytest.mark.parametrize("change", WRONG_MODELS.values(), ids=WRONG_MODELS.keys())
def test_the_bound_rejects_wrong_models(change):
    """The bound is tight enough to detect a slightly different model."""
    small = Small()
    tokens = prompt(small)
    worst, nmse = distances(change(small), exact(small, tokens))
    most, most_nmse = furthest(small, tokens, "F32")
    assert worst > most
    assert nmse > most_nmse


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_step_that_fails_leaves_no_cells(error, tmp_path):
    """A failed step holds no tokens, and can be run again."""
    small = Small()
    tokens = prompt(small)
    with loaded(small.write(tmp_path / "small.gguf"), context=32) as model:
        before = model.evaluate(tokens[:7], 0).copy()
        with patch.object(model.team, "run", side_effect=error), pytest.raises(error):
            model.evaluate(tokens[7:], 7)
        assert model.cells.positions_of(0).tolist() == list(range(7))
        model.evaluate(tokens[7:], 7)
        model.cells.clear()
        assert np.array_equal(model.evaluate(tokens[:7], 0), before)
