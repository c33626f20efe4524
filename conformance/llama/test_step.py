"""The step against the reference transformer: random small LLaMAs of every kind.

The bound is Monte Carlo arithmetic (Parker, 1997). The reference is run TRIALS times with every op
in error by the whole of its own derived bound, each element up or down at random, so the errors
travel through the model as a kernel's would. A certified kernel errs less than its bound, so the
step may not be further from the exact reference than the furthest trial, neither in its worst logit
nor in NMSE. Nothing is tuned: the trials know the ops' bounds and, for caches in F16, that format's
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

import reference.transformer as formula
from conformance.llama.small_models import Small
from engine.model import Model
from engine.options import Options
from kernels.table import variants
from reference.linear import quantised_bound
from reference.op import Array
from reference.quantise_activations import dequantise_activations, quantise_activations
from reference.table import OPS

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
        linear = formula.linear_of_quantised if is_int8(small) else formula.linear
    weights, norms = small.tensors()
    sizes = replace(small.shape(), **shape)
    return formula.transformer(np.array(tokens, np.int32), weights, norms, sizes, linear)


def is_int8(small: Small) -> bool:
    """Whether the first choice for the model's matrices reads quantised activations."""
    exact = (k for k in variants("linear", small.format) if k.numerics == "exact")
    return next(exact).activations == "int8"


def shaken(value: Array, bound: Any, rng: np.random.Generator) -> Array:
    """Every element off by its bound, up or down."""
    return np.asarray(value + bound * rng.choice([-1.0, 1.0], value.shape))


def erring(name: str, rng: np.random.Generator) -> Callable[..., Array]:
    """The op's reference, wrong by all that its bound allows."""
    op = OPS[name]
    names = inspect.signature(op.reference)

    def wrong(*positional: Any, **named: Any) -> Array:
        inputs = names.bind(*positional, **named).arguments
        expected = op.expected(inputs)
        (out,) = expected
        return shaken(expected[out], op.bound(inputs, expected)[out], rng)

    return wrong


def erring_int8_linear(rng: np.random.Generator) -> Callable[..., Array]:
    """linear_of_quantised, wrong by the bound of kernels with exact integer dots."""

    def wrong(x: Array, weight: Array, format: str) -> Array:
        q, scale, _ = quantise_activations(x)
        x = dequantise_activations(q, scale)
        bound = quantised_bound(x, {"weight": weight, "format": format})
        return shaken(OPS["linear"].reference(x, weight, format), bound, rng)

    return wrong


@contextmanager
def all_ops_erring(rng: np.random.Generator, kv_format: str) -> Iterator[None]:
    causal = formula.causal

    def rounded(q: Array, k: Array, v: Array, positions: Array) -> Array:
        if kv_format == "F16":
            k, v = (shaken(x, F16_ROUNDING * np.abs(x), rng) for x in (k, v))
        return causal(q, k, v, positions)

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
    """What the engine gives after every token."""
    options = {"threads": 2, "context": 32, **options}
    rows: list[Array] = []
    model = Model(small.write(folder / "small.gguf"), Options(**options))
    try:
        model.evaluate(tokens, 0, every=True, each=lambda part: rows.append(part.copy()))
    finally:
        model.close()
    return np.concatenate(rows).astype(np.float64)


@each_model
@pytest.mark.parametrize("kv_format", ["F32", "F16"])
def test_step_is_the_reference(small: Small, kv_format: str, tmp_path: Path) -> None:
    """The step's logits are the reference's, up to what the ops' own bounds explain."""
    tokens = prompt(small)
    truth = exact(small, tokens)
    worst, nmse = distances(logits_of(small, tmp_path, tokens, kv_format=kv_format), truth)
    most, most_nmse = furthest(small, tokens, kv_format)
    assert worst <= most
    assert nmse <= most_nmse


def unflipped(small: Small, tokens: list[int]) -> float:
    """The furthest logit of trials in which every activation rounds to the exact model's int8; the
    blocks' scales are the trials' own."""
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
def test_int8_step_is_float_tight_but_for_flips(format: str, tmp_path: Path) -> None:
    """Unless an activation rounds to its other neighbour, which is rare, a token's logits are as
    near to the reference as float kernels bring them: true of most tokens."""
    small = Small(format=format, seed=1)
    tokens = prompt(small)
    error = np.abs(logits_of(small, tmp_path, tokens, kv_format="F32") - exact(small, tokens))
    assert np.median(error.max(axis=1)) <= unflipped(small, tokens)


@pytest.mark.parametrize("format", ["F32", "Q8_0", "Q4_0"])
def test_scalar_kernels_are_the_reference_too(format: str, tmp_path: Path) -> None:
    """The fallback variants, which read float activations, compute the same model."""
    small = Small(format=format, head_dim=24)
    tokens = prompt(small)
    got = logits_of(small, tmp_path, tokens, kv_format="F32", variant="scalar")
    with patch(f"{__name__}.is_int8", lambda _: False):
        worst, nmse = distances(got, exact(small, tokens))
        most, most_nmse = furthest(small, tokens, "F32")
    assert worst <= most
    assert nmse <= most_nmse


@pytest.mark.parametrize(("format", "limit"), [("Q8_0", 1e-3), ("Q4_0", 1e-3), ("F16", 1e-6)])
def test_int8_activations_cost_little(format: str, limit: float, tmp_path: Path) -> None:
    """Against products of float activations the logits lose less than an NMSE of 1e-3: 14 roundings
    a block to 8 bits, each of relative power 2^-16 or so, in two blocks."""
    small = Small(format=format, seed=2)
    tokens = prompt(small)
    truth = exact(small, tokens, formula.linear)
    assert distances(logits_of(small, tmp_path, tokens), truth)[1] <= limit


SPOILT: dict[str, Callable[[Small], Array]] = {
    "eps": lambda s: exact(s, prompt(s), norm_eps=1e-4),
    "rotary base": lambda s: exact(s, prompt(s), frequencies=s.shape().frequencies * 1.0001),
    "no rotation": lambda s: exact(s, prompt(s), frequencies=s.shape().frequencies * 0),
    "heads grouped otherwise": lambda s: exact(s, prompt(s), kv_heads=s.kv_heads * 2,
                                               heads=s.heads * 2, head_dim=s.head_dim // 2,
                                               frequencies=s.shape().frequencies[::2]),
    "one weight of thousands": lambda s: exact(replace(s, seed=s.seed), prompt(s),
                                               one_weight_off(formula.linear)),
    "activations in int8": lambda s: exact(s, prompt(s), formula.linear_of_quantised),
    "last token": lambda s: exact(s, [*prompt(s)[:-1], (prompt(s)[-1] + 1) % s.vocab]),
}  # fmt: skip


def one_weight_off(linear: Callable[..., Array]) -> Callable[..., Array]:
    """linear with the first element of every matrix larger by a hundredth."""

    def wrong(x: Array, weight: Array, format: str) -> Array:
        values = weight.copy().view(np.float32)
        values[0, 0] *= 1.01
        return linear(x, values.view(np.uint8), format)

    return wrong


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT.keys())
def test_bound_rejects_wrong_models(spoil: Callable[[Small], Array]) -> None:
    """The bound is tight enough to see a slightly different model."""
    small = Small()
    tokens = prompt(small)
    worst, nmse = distances(spoil(small), exact(small, tokens))
    most, most_nmse = furthest(small, tokens, "F32")
    assert worst > most
    assert nmse > most_nmse


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_step_that_fails_leaves_no_cells(error: type[BaseException], tmp_path: Path) -> None:
    """What was not computed to its end is not held, and the same step can be run again."""
    small = Small()
    model = Model(small.write(tmp_path / "small.gguf"), Options(threads=1, context=32))
    tokens = prompt(small)
    before = model.evaluate(tokens[:7], 0).copy()
    with patch.object(model.team, "run", side_effect=error), pytest.raises(error):
        model.evaluate(tokens[7:], 7)
    assert model.cells.positions_of(0).tolist() == list(range(7))
    model.evaluate(tokens[7:], 7)
    model.cells.clear()
    assert np.array_equal(model.evaluate(tokens[:7], 0), before)
    model.close()


def test_rope_divisors_are_read(tmp_path: Path) -> None:
    """Linear scaling in the metadata gives the model with slower frequencies."""
    small = Small()
    tokens = prompt(small)
    path = small.write(
        tmp_path / "scaled.gguf", rope__scaling__type="linear", rope__scaling__factor=4.0
    )
    model = Model(path, Options(threads=1, kv_format="F32"))
    last = model.evaluate(tokens, 0).astype(np.float64)
    model.close()
    truth = exact(small, tokens, frequencies=small.shape().frequencies / 4)
    most, _ = furthest(small, tokens, "F32")
    assert np.abs(last - truth[-1]).max() <= most
