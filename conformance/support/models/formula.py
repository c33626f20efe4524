"""The reference's logits of small LLaMAs, and a bound on an engine's distance from them.

The bound is Monte Carlo arithmetic (Parker, 1997). The reference is run TRIALS times with every op
perturbed by its own derived bound, each element up or down at random, so that errors propagate
through the model as a kernel's would. A certified kernel's error is below its bound, so the step
may not be further from the exact reference than the furthest trial, neither in its worst logit nor
in NMSE. Nothing is tuned: the trials use the ops' bounds and, for caches in F16, that format's
rounding of keys and values; activations quantised to int8 flip to a neighbour in a trial as they
may in a kernel.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import reference.models.transformer as formula
from conformance.support.models.small_models import Small
from conformance.support.models.steps import loaded
from kernels.table import variants
from reference.linear import linear_of_quantised, quantised_bound
from reference.op import Array
from reference.quantise_activations import (
    QUANTISING,
    ROUNDINGS,
    dequantise_activations,
    rounding_for,
)
from reference.table import OPS


def log_softmax(row: Array) -> tuple[Array, float]:
    """Log-probabilities, and the bound on the error of log_sum_exp."""
    op = OPS["log_sum_exp"]
    expected = op.expected({"logits": row})
    ((name, total),) = expected.items()
    error = float(np.max(op.bound({"logits": row}, expected)[name]))
    return row.astype(np.float64) - float(np.squeeze(total)), error + 1e-12


TRIALS = 24
ERRING = (
    "embedding", "rotation", "rms_norm", "rope_norm", "attention", "add", "add_bias", "swiglu",
    "relu", "reglu", "sparse_axpy",
)  # fmt: skip
F16_ROUNDING = 2.0**-11
MIXED = ("Q4_K", "Q6_K"), ("Q2_K", "Q3_K"), ("IQ4_XS", "Q5_K"), ("TQ1_0", "TQ2_0")
MODELS = {
    "MHA": Small(kv_heads=4),
    "GQA": Small(),
    "MQA": Small(kv_heads=1),
    "tied": Small(tied=True),
    "biases": Small(biases=True),
    "one block, one head": Small(blocks=1, heads=1, kv_heads=1, head_dim=64),
    "narrow heads": Small(heads=7, kv_heads=7, head_dim=2),
    "odd sizes": Small(hidden=66, heads=3, kv_heads=3, head_dim=6, ffn=97, vocab=71),
    "odd sizes, F16": Small(hidden=67, heads=6, kv_heads=2, head_dim=10, ffn=31, format="F16"),
    "odd sizes, BF16": Small(hidden=33, heads=5, kv_heads=1, head_dim=14, ffn=1, format="BF16"),
    "wide heads": Small(heads=2, kv_heads=1, head_dim=80, ffn=160),
    **{f: Small(format=f, seed=1) for f in ("F16", "BF16", "Q8_0", "Q4_0")},
    **{f: Small(format=f, seed=1) for f in ("Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4")},
    **{f"{f} and {finer}": Small(format=f, finer=finer, hidden=256, heads=8, head_dim=32, ffn=256)
       for f, finer in MIXED},
    "IQ2_XS and IQ3_S": Small(format="IQ2_XS", finer="IQ3_S", hidden=256, heads=8, head_dim=32,
                              ffn=256, blocks=1),
    **{f"{f}, all at once": Small(format=f, kv_heads=1, head_dim=24, heads=4, biases=True,
                                  tied=True, blocks=3) for f in ("Q8_0", "Q4_0")},
}  # fmt: skip
each_model = pytest.mark.parametrize("small", MODELS.values(), ids=MODELS.keys())


def prompt(small: Small, length: int = 19) -> list[int]:
    return np.random.default_rng(small.seed).integers(0, small.vocab, length).tolist()


def exact(small: Small, tokens: list[int], linear: Any = None, **shape: Any) -> Array:
    """The reference's logits, with activations quantised where the engine's kernels do so."""
    if linear is None:
        linear = linear_of_quantised if is_int8(small) else formula.linear
    weights, norms = small.tensors()
    sizes = replace(small.shape(), **shape)
    return formula.transformer(np.array(tokens, np.int32), weights, norms, sizes, linear)


def is_int8(small: Small) -> bool:
    """Whether the preferred kernel for the model's matrices takes quantised activations."""
    exact = (k for k in variants("linear", small.format) if k.numerics == "exact")
    return next(exact).activations in QUANTISING


def shaken(value: Array, bound: Any, rng: np.random.Generator) -> Array:
    """Every element perturbed by its bound, up or down."""
    return np.asarray(value + bound * rng.choice([-1.0, 1.0], value.shape))


def erring(name: str, rng: np.random.Generator) -> Callable[..., Array]:
    """The op's reference, perturbed by its bound."""
    op = OPS[name]
    names = inspect.signature(op.reference)

    def wrong(*positional: Any, **named: Any) -> Array:
        bound = names.bind(*positional, **named)
        bound.apply_defaults()
        inputs = bound.arguments
        expected = op.expected(inputs)
        (out,) = expected
        return shaken(expected[out], op.bound(inputs, expected)[out], rng)

    return wrong


def erring_int8_linear(rng: np.random.Generator) -> Callable[..., Array]:
    """linear_of_quantised, perturbed by the bound of kernels with exact integer dot products."""

    def wrong(x: Array, weight: Array, format: str) -> Array:
        q, scale, _ = ROUNDINGS[rounding_for(format)](x)
        x = dequantise_activations(q, scale)
        bound = quantised_bound(x, {"weight": weight, "format": format})
        return shaken(OPS["linear"].reference(x, weight, format), bound, rng)

    return wrong


@contextmanager
def all_ops_erring(rng: np.random.Generator, kv_format: str) -> Iterator[None]:
    causal = formula.causal

    def rounded(q: Array, k: Array, v: Array, *others: Any, **named: Any) -> Array:
        if kv_format == "F16":
            k, v = (shaken(x, F16_ROUNDING * np.abs(x), rng) for x in (k, v))
        return causal(q, k, v, *others, **named)

    wrong = {name: erring(name, rng) for name in ERRING}
    with patch.multiple(formula, causal=rounded, **wrong):
        yield


def distances(logits: Array, truth: Array) -> tuple[float, float]:
    """The worst logit's error, and the NMSE."""
    error = logits - truth
    return float(np.abs(error).max()), float((error**2).sum() / (truth**2).sum())


def furthest(small: Small, tokens: list[int], kv_format: str) -> tuple[float, float]:
    """The largest distances from the truth among all trials."""
    truth = exact(small, tokens)
    found = []
    for seed in range(TRIALS):
        rng = np.random.default_rng(seed)
        linear = erring_int8_linear(rng) if is_int8(small) else erring("linear", rng)
        with all_ops_erring(rng, kv_format):
            found.append(distances(exact(small, tokens, linear), truth))
    worst, nmse = zip(*found, strict=True)
    return max(worst), max(nmse)


def logits_of(small: Small, folder: Path, tokens: list[int], **options: Any) -> Array:
    """The engine's logits after every token."""
    rows: list[Array] = []
    path = small.write(folder / "small.gguf")
    with loaded(path, **{"threads": 2, "context": 32, **options}) as model:
        model.evaluate(tokens, 0, every=True, each=lambda part: rows.append(part.copy()))
    return np.concatenate(rows).astype(np.float64)


def demand_explained(got: Array, small: Small, tokens: list[int], kv_format: str = "F32") -> None:
    """Assert that logits are the reference's within the ops' own bounds."""
    worst, nmse = distances(got, exact(small, tokens))
    most, most_nmse = furthest(small, tokens, kv_format)
    assert worst <= most
    assert nmse <= most_nmse
