"""The forward pass of gpt-oss (OpenAI, arXiv 2508.10925), in reference ops."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from reference.arithmetic import add
from reference.embedding import embedding
from reference.gated_activations import swiglu_oai
from reference.linear import linear
from reference.models.mixture import mixture
from reference.models.transformer import Shape, Weight, causal, projected
from reference.rms_norm import rms_norm
from reference.rope import rope_neox, rotation

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class GptOssShape(Shape):
    """Every other block, from the first, has sliding-window attention over `window` tokens."""

    window: int = 0


def gpt_oss(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: GptOssShape,
    linear: Callable[[Array, Array, str], Array] = linear,
) -> Array:
    """Logits of every token of one sequence that starts at position 0; arguments are those of
    `transformer`. -> float64 [tokens, vocab].
    """
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    turn = rotation(positions, shape.frequencies, shape.magnitude)

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        return rms_norm(x, norms[f"{name}.weight"], shape.norm_eps)

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    clamped = partial(swiglu_oai, alpha=1.702, limit=7.0)
    assert shape.mixture
    for i in range(shape.blocks):
        block = f"blk.{i}"
        h = normed(x, f"{block}.attn_norm")
        q, k = (
            rope_neox(project(h, f"{block}.attn_{n}").reshape(count, -1, shape.head_dim), turn)
            for n in "qk"
        )
        v, sinks = project(h, f"{block}.attn_v"), norms[f"{block}.attn_sinks.weight"]
        window = 0 if i % 2 else shape.window
        attended = causal(q, k, v, positions, window=window, sinks=sinks)
        x = add(x, project(attended.reshape(count, -1), f"{block}.attn_output"))
        h = normed(x, f"{block}.post_attention_norm")
        x = add(x, mixture(h, block, weights, norms, shape.mixture, project, linear, clamped))
    output = "output" if "output.weight" in weights else "token_embd"
    return project(normed(x, "output_norm"), output)
