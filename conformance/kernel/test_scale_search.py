"""Formats with searched scales: errors compared with llama.cpp's, and laws of importance."""

import numpy as np
import pytest

from conformance.llama.peers import goldens
from conformance.llama.peers.rows import FITTED, PLAIN, error, importance, sets
from reference.formats import FORMATS
from reference.formats.scale_search import importance_weights
from reference.op import Array

THEIRS = goldens.read_json("errors")
SETS = sets()
# Of their errors: neither side's fit minimises quite what is measured (Q2_K plain ones |x e|,
# weighed ones importance times size), so that either may be ahead by so much.
LITTLE = 1.01


def parts(name: str, x: Array) -> Array:
    """[rows, elements] -> [parts, elements of a part]."""
    return x.reshape(-1, FORMATS[name].part)


def decoded(name: str, x: Array, columns: Array) -> Array:
    return FORMATS[name].dequantise(FORMATS[name].quantise_weighted(x, columns))


def test_stored_errors_cover_all_formats_and_sets():
    assert set(THEIRS) == set(FITTED), goldens.MAKE
    for name, kept in THEIRS.items():
        assert set(kept["weighed"]) == set(SETS), goldens.MAKE
        assert set(kept["plain"]) == (set(SETS) if name in PLAIN else set()), goldens.MAKE


@pytest.mark.parametrize("name", PLAIN)
def test_errors_are_no_larger_than_llama_cpps(name):
    """Weighted by squares of elements, the default without an importance matrix."""
    for key, x in SETS.items():
        ours = error(name, FORMATS[name].quantise(x), x, x.astype(np.float64) ** 2)
        assert ours <= LITTLE * THEIRS[name]["plain"][key], key


@pytest.mark.parametrize("name", FITTED)
def test_weighted_errors_are_no_larger_than_llama_cpps(name):
    """Weighted by the column importance that both were given."""
    for key, x in SETS.items():
        data = FORMATS[name].quantise_weighted(x, importance(x))
        ours = error(name, data, x, importance(x))
        assert ours <= LITTLE * THEIRS[name]["weighed"][key], key


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("key", SETS)
def test_importance_reduces_the_weighted_error(name, key):
    """Under the importance weights the total error is smaller than without."""
    x = SETS[key]
    columns = importance(x)
    form = FORMATS[name]
    each = parts(name, x), parts(name, np.broadcast_to(columns, x.shape))
    weights = importance_weights(*each).reshape(x.shape)
    found, plain = form.quantise_weighted(x, columns), form.quantise(x)
    assert error(name, found, x, weights) < error(name, plain, x, weights)


@pytest.mark.parametrize("name", FITTED)
def test_unimportant_columns_do_not_affect_others(name):
    """A column of zero importance counts only by its magnitude, and where it extends the range:
    within it, negating the column leaves every other element unchanged."""
    rng = np.random.default_rng(3)
    for x in SETS.values():
        columns = importance(x)
        columns[rng.random(len(columns)) < 0.25] = 0
        each = parts(name, x[:16])
        inner = np.minimum(-each.min(axis=1, keepdims=True), each.max(axis=1, keepdims=True))
        turned = ((np.abs(each) < inner).reshape(16, -1)) & (columns == 0)
        before = decoded(name, x[:16], columns)
        after = decoded(name, np.where(turned, -x[:16], x[:16]), columns)
        assert turned.mean() > 0.1
        assert np.array_equal(after[~turned], before[~turned])


@pytest.mark.parametrize("name", FITTED)
def test_all_zero_importance_is_finite(name):
    """If no column of a part has importance, its elements are still finite."""
    for x in SETS.values():
        columns = importance(x)
        columns[: len(columns) // 2] = 0
        assert np.isfinite(decoded(name, x[:8], columns)).all()
