"""OLMo 2 (OLMo Team, arXiv 2501.00656), OLMo 3 (2025) and GLM 4 (GLM Team, arXiv 2406.12793; its
models of 2025), dense: what attention and the network give is normalised before it is added.

OLMo has no norms before them, but of all queries, and of all keys, before rope turns halves of a
head; OLMo 3, an `olmo2` in GGUF, has windows, and stretches rope in blocks without one alone. GLM 4
has LLaMA's norms as well, gate and up as one tensor, and rope of a part of a head.
"""

from collections.abc import Mapping

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import feed_forward, layers
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family, Rows
from engine.models.layers import (
    StepInputs,
    attention,
    attention_tensors,
    rotation_of,
    rotation_of_windows,
)


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden = config.hidden
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        block = f"blk.{i}"
        tensors |= {
            **attention_tensors(config, i),
            f"{block}.post_attention_norm.weight": (hidden,),
            f"{block}.post_ffw_norm.weight": (hidden,),
        }
        if config.architecture == "olmo2":
            tensors |= {f"{block}.attn_q_norm.weight": (q,), f"{block}.attn_k_norm.weight": (kv,)}
            tensors |= feed_forward.expected_tensors(config, i)
        else:
            tensors |= {f"{block}.{name}_norm.weight": (hidden,) for name in ("attn", "ffn")}
            tensors |= feed_forward.joined_tensors(config, i)
    return tensors | {"output_norm.weight": (hidden,)}


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a file may have."""
    tensors = layers.optional_tensors(config)
    if config.architecture == "glm4":
        heads = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
        for i in range(config.blocks):
            tensors |= {f"blk.{i}.attn_{n}.bias": (heads[n] * config.head_dim,) for n in heads}
    return tensors


def parts(config: ModelConfig) -> dict[str, Rows]:
    """Gate and up of GLM 4, out of one tensor."""
    return feed_forward.joined_parts(config) if config.architecture == "glm4" else {}


def build(
    config: ModelConfig,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> tuple[Graph, Value]:
    """The nodes of one step and its logits [outputs, vocab]."""
    graph = Graph()
    rope = "rope_neox" if config.architecture == "olmo2" else "rope_norm"
    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    rotation = rotation_of(graph, weights, inputs, config)
    of_windows = rotation_of_windows(graph, weights, inputs, rotation)

    def mixed(i: int, h: Value) -> Value:
        turn = of_windows if i in config.windowed else rotation
        return attention(graph, f"blk.{i}", h, weights, inputs, caches, config, turn, rope)

    return graph, logits_of_blocks(graph, x, mixed, weights, inputs, config, after=True)


FAMILY = Family(expected_tensors, build, optional_tensors, parts)
