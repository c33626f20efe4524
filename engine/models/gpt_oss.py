"""gpt-oss (OpenAI, arXiv 2508.10925): LLaMA of experts with biases everywhere, sinks, and windows
in every other block.

Rope turns halves of a head. The router has a bias, and weights are softmax over the chosen; experts
clamp what they gate.
"""

from engine.config import ModelConfig
from engine.models import feed_forward, qwen
from engine.models.experts import MATRICES
from engine.models.family import Family
from engine.models.tensors import Tensors, attention_tensors, with_biases


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions ([experts], rows, elements)."""
    mixture = feed_forward.tensors(config, i)
    return {
        "attn_norm.weight": (config.hidden,),
        **with_biases(attention_tensors(config)),
        "attn_sinks.weight": (config.heads,),
        "post_attention_norm.weight": (config.hidden,),
        **mixture,
        "ffn_gate_inp.bias": mixture["ffn_gate_inp.weight"][:1],
        **{f"{name}_exps.bias": mixture[f"{name}_exps.weight"][:2] for name in MATRICES},
    }


FAMILY = Family(block, qwen.build)
