"""Phi 3 (Abdin et al., arXiv 2404.14219) and Phi 4, dense.

Qwen's graph without biases and norms of heads. Queries, keys and values are one tensor, and so are
gate and up. Long rope (Ding et al., arXiv 2402.13753) has two sets of divisors of the frequencies:
that of short contexts, up to the one that the model was first trained for, and that of longer ones.
Which it is depends on the context that the model is loaded with, not on a text's length.
"""

from engine.config import ModelConfig
from engine.models import feed_forward, qwen
from engine.models.family import Family, Rows, fused_qkv, output_and_two_sets
from engine.models.tensors import Tensors, attention_tensors


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions (rows, elements)."""
    return {
        "attn_norm.weight": (config.hidden,),
        **attention_tensors(config),
        "ffn_norm.weight": (config.hidden,),
        **feed_forward.joined_tensors(config, i),
    }


def parts(config: ModelConfig) -> dict[str, Rows]:
    """Queries, keys and values out of one tensor, gate and up out of another."""
    return fused_qkv(config) | feed_forward.joined_parts(config)


FAMILY = Family(block, qwen.build, optional=output_and_two_sets, parts=parts)
