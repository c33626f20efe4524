"""Qwen 2 (Yang et al., arXiv 2407.10671) and Qwen 3 (arXiv 2505.09388), dense or of experts, OLMoE
(Muennighoff et al., arXiv 2409.02060), and GLM 4.5 to 4.7 of experts (arXiv 2508.06471).

LLaMA, but for rope, which turns halves of a head, and for what queries and keys have before it: a
bias, which values have, too (`qwen2`), a norm of each head (`qwen3`), either or both (`glm4moe`),
or a norm of all together (`olmoe`).
"""

from collections.abc import Mapping

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import experts, feed_forward, layers
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family
from engine.models.layers import (
    StepInputs,
    attention,
    attention_tensors,
    rotation_of,
)


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden, head_dim = config.hidden, config.head_dim
    q, kv = config.heads * head_dim, config.kv_heads * head_dim
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        block = f"blk.{i}"
        tensors |= {
            f"{block}.attn_norm.weight": (hidden,),
            **attention_tensors(config, i),
            f"{block}.{before_network(config)}.weight": (hidden,),
        } | feed_forward.expected_tensors(config, i)
        sizes = {"q": q, "k": kv, "v": kv}
        if config.architecture == "glm4moe":
            continue
        if config.architecture in ("qwen3", "qwen3moe"):
            tensors |= {f"{block}.attn_{n}_norm.weight": (head_dim,) for n in "qk"}
        elif config.architecture == "olmoe":
            tensors |= {f"{block}.attn_{n}_norm.weight": (sizes[n],) for n in "qk"}
        else:
            tensors |= {f"{block}.attn_{n}.bias": (size,) for n, size in sizes.items()}
    return tensors | {"output_norm.weight": (hidden,)}


def before_network(config: ModelConfig) -> str:
    """What a file calls the norm before the feed-forward network."""
    return "post_attention_norm" if config.architecture == "glm4moe" else "ffn_norm"


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a file may have."""
    tensors = layers.optional_tensors(config) | experts.optional_tensors(config)
    heads = {"q": config.heads, "k": config.kv_heads, "v": config.kv_heads}
    for i in range(config.blocks) if config.architecture == "glm4moe" else ():
        tensors |= {f"blk.{i}.attn_{n}.bias": (heads[n] * config.head_dim,) for n in heads}
        tensors |= {f"blk.{i}.attn_{n}_norm.weight": (config.head_dim,) for n in "qk"}
    return tensors


def build(
    config: ModelConfig,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> tuple[Graph, Value]:
    """The nodes of one step and its logits [outputs, vocab]."""
    graph = Graph()
    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    rotation = rotation_of(graph, weights, inputs, config)

    def mixed(i: int, h: Value) -> Value:
        return attention(graph, f"blk.{i}", h, weights, inputs, caches, config, rotation)

    return graph, logits_of_blocks(graph, x, mixed, weights, inputs, config)


FAMILY = Family(expected_tensors, build, optional_tensors)
