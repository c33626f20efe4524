"""Phi 3 (Abdin et al., arXiv 2404.14219) and Phi 4, dense.

Qwen's graph without biases and norms of heads. Queries, keys and values are one tensor, and so are
gate and up. Long rope (Ding et al., arXiv 2402.13753) has two sets of divisors of the frequencies:
that of short contexts, up to the one that the model was first trained for, and that of longer ones.
Which it is depends on the context that the model is loaded with, not on a text's length.
"""

from engine.config import ModelConfig
from engine.models import feed_forward, qwen
from engine.models.family import Family, Rows, fused_qkv
from engine.models.layers import attention_tensors


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions (rows, elements)."""
    hidden = config.hidden
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        tensors |= {
            f"blk.{i}.attn_norm.weight": (hidden,),
            **attention_tensors(config, i),
            f"blk.{i}.ffn_norm.weight": (hidden,),
        } | feed_forward.joined_tensors(config, i)
    return tensors | {"output_norm.weight": (hidden,)}


def optional_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors a file may have."""
    return {
        "output.weight": (config.vocab, config.hidden),
        "rope_factors_long.weight": (config.rope_dims // 2,),
        "rope_factors_short.weight": (config.rope_dims // 2,),
    }


def parts(config: ModelConfig) -> dict[str, Rows]:
    """Queries, keys and values out of one tensor, gate and up out of another."""
    return fused_qkv(config) | feed_forward.joined_parts(config)


FAMILY = Family(expected_tensors, qwen.build, optional_tensors, parts)
