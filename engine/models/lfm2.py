"""LFM 2 (Liquid AI, 2025): most blocks are gated short convolutions, some attend. After
the first few blocks, networks may be mixtures of experts.

A block projects its input to B, C and x, convolves B * x over the last few tokens, and gives C
times that, projected: no activation, and of the text before a state of two tokens. Blocks that
attend are Qwen 3's. Whether one does is told by its heads of keys in the file, 0 for a convolution.
"""

from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import experts, feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family, Rows
from engine.models.mamba import routes, split
from engine.models.network import Network
from engine.models.tensors import (
    Constants,
    Tensors,
    attention_tensors,
    qk_norms,
    rope_constants,
)

LAST = "token_embd_norm"  # the last norm, whatever its name says


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions (rows, elements)."""
    hidden = config.hidden
    if config.has_attention(i):
        own = attention_tensors(config) | qk_norms(config)
    else:
        assert config.ssm
        own = {
            "shortconv.conv.weight": (hidden, config.ssm.taps),
            "shortconv.in_proj.weight": (3 * hidden, hidden),
            "shortconv.out_proj.weight": (hidden, hidden),
        }
    return {
        "attn_norm.weight": (hidden,),
        **own,
        "ffn_norm.weight": (hidden,),
        **feed_forward.tensors(config, i),
    }


def last(config: ModelConfig) -> Tensors:
    """What follows the blocks."""
    return {f"{LAST}.weight": (config.hidden,)}


def parts(config: ModelConfig) -> dict[str, Rows]:
    """B, C and x of a convolution."""
    found: dict[str, Rows] = {}
    for i in sorted(config.recurrent):
        found |= split(f"blk.{i}.shortconv.in_proj", dict.fromkeys("bcx", config.hidden))
    return found


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> Constants:
    """Rope's, and a bias of no convolution."""
    no_bias = {"shortconv.no_bias": np.zeros(config.hidden, np.float32)}
    return rope_constants(config, divisors) | no_bias


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    x, rotation = net.embedded(), net.rotation()

    def mixed(i: int, h: Value) -> Value:
        attends = net.config.has_attention(i)
        return net.attention(i, h, rotation) if attends else short_convolution(net, i, h)

    return logits_of_blocks(net, x, mixed, last=LAST)


def short_convolution(net: Network, i: int, h: Value) -> Value:
    """C * the convolution of B * x, projected [tokens hidden]."""
    conv, state = f"blk.{i}.shortconv", net.caches[f"blk.{i}.conv_state"]
    b, c, x = (net.project(f"{conv}.in_proj_{name}", h) for name in "bcx")
    convolved, _ = net.graph.multi_output(
        "causal_conv1d",
        f"{conv}.conv",
        into={"states": state},
        x=net.graph("mul", f"{conv}.bx", x=b, y=x),
        weight=net.weights[f"{conv}.conv.weight"],
        bias=net.weights["shortconv.no_bias"],
        before=state,
        **routes(net.inputs),
    )
    return net.project(f"{conv}.out_proj", net.graph("mul", f"{conv}.y", x=c, y=convolved))


FAMILY = Family(block, build, experts.optional, last=last, parts=parts, constants=constants)
