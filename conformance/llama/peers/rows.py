"""Rows to quantise, and what the quantised ones are worth: a sum of squared errors, weighed."""

import numpy as np

from engine.embedded import resolve
from engine.gguf.file import GGUFFile
from reference.formats import FORMATS
from reference.op import Array

FITTED = tuple(name for name, form in FORMATS.items() if form.encode_weighted)
PLAIN = tuple(name for name in FITTED if name not in ("Q4_0", "Q4_1", "Q5_0", "Q5_1"))
SHAPE = 24, 1024
MATRICES = ("token_embd", "blk.0.attn_k", "blk.2.attn_output", "blk.4.ffn_down")


def sets() -> dict[str, Array]:
    """float32 [rows, elements], random ones and some of the embedded model's."""
    rng = np.random.default_rng(11)
    found = {
        "normal": rng.standard_normal(SHAPE),
        "student": rng.standard_t(4, SHAPE),
        "uniform": rng.uniform(-1, 1, SHAPE),
        "laplace": 0.02 * rng.laplace(size=SHAPE),
    }
    with GGUFFile(resolve("story-f16")) as file:
        for name in MATRICES:
            rows = file.tensor(f"{name}.weight")[:96]
            found[name] = FORMATS["F16"].dequantise(rows)
    return {name: np.ascontiguousarray(x, np.float32) for name, x in found.items()}


def importance(x: Array) -> Array:
    """float32 [elements]: as of activations, few columns matter much."""
    return (np.random.default_rng(12).random(x.shape[-1]) ** 8 + 1e-3).astype(np.float32)


def error(name: str, data: Array, x: Array, weights: Array) -> float:
    """The sum of weights times squared errors of quantised rows."""
    off = FORMATS[name].dequantise(data).astype(np.float64) - x
    return float((weights * off**2).sum())
