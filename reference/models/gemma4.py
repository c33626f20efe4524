"""The forward pass of Gemma 4's text model (Google DeepMind, 2026), in reference ops."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.activations import gelu
from reference.arithmetic import add, scale, softcap
from reference.embedding import embedding
from reference.gated_activations import geglu
from reference.linear import linear
from reference.models.mixture import mixture
from reference.models.transformer import Shape, Weight, causal, projected
from reference.rms_norm import rms_norm
from reference.rope import rope_neox, rotation

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Gemma4Shape(Shape):
    """`windowed` blocks see `window` tokens, with `window_frequencies` and heads of `window_dim`;
    the last `shared` blocks reuse the keys and values of an earlier one. Each block has an
    embedding of `per_layer` elements for every token (per-layer embeddings), unless that is 0."""

    window: int = 0
    windowed: frozenset[int] = frozenset()
    window_dim: int = 0
    window_frequencies: Array | None = None
    shared: int = 0
    per_layer: int = 0
    logit_cap: float = 0.0


def gemma4(
    tokens: Array,
    weights: Mapping[str, Weight],
    norms: Mapping[str, Array],
    shape: Gemma4Shape,
    linear: Callable[[Array, Array, str], Array] = linear,
) -> Array:
    """Logits of every token of one sequence that starts at position 0.

    Values are normalised without a weight; without attn_v they are the keys before their norm.
    Arguments are those of `transformer`. -> float64 [tokens, vocab].
    """
    count = len(tokens)
    positions = np.arange(count, dtype=np.int32)
    assert shape.window_frequencies is not None
    turns = [rotation(positions, f, 1.0) for f in (shape.frequencies, shape.window_frequencies)]
    kept: dict[bool, tuple[Array, Array]] = {}  # the latest keys and values, by kind of block

    def project(x: Array, name: str) -> Array:
        return projected(x, name, weights, norms, linear)

    def normed(x: Array, name: str) -> Array:
        return rms_norm(x, norms[f"{name}.weight"], shape.norm_eps)

    def attend(h: Array, i: int) -> Array:
        block, windowed = f"blk.{i}", i in shape.windowed
        size = shape.window_dim if windowed else shape.head_dim
        q = normed(project(h, f"{block}.attn_q").reshape(count, -1, size), f"{block}.attn_q_norm")
        if i < shape.blocks - shape.shared:
            k = v = project(h, f"{block}.attn_k").reshape(count, -1, size)
            if f"{block}.attn_v.weight" in weights:
                v = project(h, f"{block}.attn_v").reshape(count, -1, size)
            k = rope_neox(normed(k, f"{block}.attn_k_norm"), turns[windowed])
            kept[windowed] = k, rms_norm(v, np.ones(size, np.float32), shape.norm_eps)
        k, v = kept[windowed]
        window = shape.window if windowed else 0
        out = causal(rope_neox(q, turns[windowed]), k, v, positions, scale=1.0, window=window)
        return project(out.reshape(count, -1), f"{block}.attn_output")

    def per_layer_input(x: Array, i: int) -> Array:
        """The block's per-layer embedding of each token, gated."""
        block, each = f"blk.{i}", slice(i * shape.per_layer, (i + 1) * shape.per_layer)
        made = scale(project(start, "per_layer_model_proj")[:, each], start.shape[1] ** -0.5)
        own = weights["per_layer_token_embd.weight"]
        row = scale(embedding(tokens, own.data, own.format)[:, each], shape.per_layer**0.5)
        both = scale(add(normed(made, "per_layer_proj_norm"), row), 2**-0.5)
        gate = gelu(project(x, f"{block}.inp_gate"))
        return normed(project(gate * both, f"{block}.proj"), f"{block}.post_norm")

    def experts_output(x: Array, i: int) -> Array:
        """The experts' output, which is added to the dense network's."""
        block, own = f"blk.{i}", shape.mixture
        assert own
        routed = rms_norm(x, norms[f"{block}.ffn_gate_inp.scale"], shape.norm_eps)
        routed, h = scale(routed, x.shape[1] ** -0.5), normed(x, f"{block}.pre_ffw_norm_2")
        made = mixture(h, block, weights, norms, own, project, linear, geglu, routed)
        return normed(made, f"{block}.post_ffw_norm_2")

    table = weights["token_embd.weight"]
    x = embedding(tokens, table.data, table.format)
    x = start = scale(x, x.shape[1] ** 0.5)
    for i in range(shape.blocks):
        block = f"blk.{i}"
        attended = attend(normed(x, f"{block}.attn_norm"), i)
        x = add(x, normed(attended, f"{block}.post_attention_norm"))
        h = normed(x, f"{block}.ffn_norm")
        fed = geglu(project(h, f"{block}.ffn_gate"), project(h, f"{block}.ffn_up"))
        fed = project(fed, f"{block}.ffn_down")
        if shape.mixture:
            fed = add(normed(fed, f"{block}.post_ffw_norm_1"), experts_output(x, i))
        x = add(x, normed(fed, f"{block}.post_ffw_norm"))
        if shape.per_layer:
            x = add(x, per_layer_input(x, i))
        factor = norms.get(f"{block}.layer_output_scale.weight", np.ones(1))
        x = scale(x, float(factor[0]))
    output = "output" if "output.weight" in weights else "token_embd"
    logits = project(normed(x, "output_norm"), output)
    return softcap(logits, shape.logit_cap) if shape.logit_cap else logits
