"""gpt-oss (OpenAI, arXiv 2508.10925): LLaMA of experts with biases everywhere, sinks, and windows
in every other block.

Rope turns halves of a head. The router has a bias, and weights are softmax over the chosen; experts
clamp what they gate.
"""

from engine.config import ModelConfig
from engine.models import feed_forward, qwen
from engine.models.experts import MATRICES
from engine.models.family import Family
from engine.models.layers import (
    attention_tensors,
    with_biases,
)


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor the model needs, with its dimensions ([experts], rows, elements)."""
    hidden = config.hidden
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        block = f"blk.{i}"
        mixture = feed_forward.expected_tensors(config, i)
        tensors |= {
            f"{block}.attn_norm.weight": (hidden,),
            **with_biases(attention_tensors(config, i)),
            f"{block}.attn_sinks.weight": (config.heads,),
            f"{block}.post_attention_norm.weight": (hidden,),
            **mixture,
            f"{block}.ffn_gate_inp.bias": mixture[f"{block}.ffn_gate_inp.weight"][:1],
        }
        for name in MATRICES:
            label = f"{block}.{name}_exps"
            tensors[f"{label}.bias"] = mixture[f"{label}.weight"][:2]
    return tensors | {"output_norm.weight": (hidden,)}


FAMILY = Family(expected_tensors, qwen.build)
