"""Gemma (Gemma Team, arXiv 2403.08295), Gemma 2 (arXiv 2408.00118) and Gemma 3 (arXiv 2503.19786),
of text alone.

LLaMA, but for a scaled embedding, to which the output is tied, for rope, which turns halves of a
head, and for GELU. Norms hold what they multiply by: the checkpoints' weights and 1. Gemma 2 has
norms after attention and the network, too, soft caps, and a window in every other block. Gemma 3
has a window in five of six, whose rope has a base of its own, and norms of each head of queries and
keys in place of caps.
"""

from collections.abc import Mapping

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models import feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family
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
    tensors: dict[str, tuple[int, ...]] = {"token_embd.weight": (config.vocab, hidden)}
    for i in range(config.blocks):
        block = f"blk.{i}"
        tensors |= {
            f"{block}.attn_norm.weight": (hidden,),
            **attention_tensors(config, i),
            f"{block}.ffn_norm.weight": (hidden,),
        } | feed_forward.expected_tensors(config, i)
        if config.architecture != "gemma":
            after = ("post_attention_norm", "post_ffw_norm")
            tensors |= {f"{block}.{n}.weight": (hidden,) for n in after}
        if config.architecture == "gemma3":
            tensors |= {f"{block}.attn_{n}_norm.weight": (config.head_dim,) for n in "qk"}
    return tensors | {"output_norm.weight": (hidden,)}


def build(
    config: ModelConfig,
    weights: Mapping[str, Value],
    inputs: StepInputs,
    caches: Mapping[str, Value],
) -> tuple[Graph, Value]:
    """The nodes of one step and its logits [outputs, vocab]."""
    graph = Graph()
    x = graph("embedding", "token_embd", tokens=inputs.tokens, weight=weights["token_embd.weight"])
    x = graph("scale", "embd", x=x, factor=config.hidden**0.5)
    rotation = rotation_of(graph, weights, inputs, config)
    of_windows = rotation_of_windows(graph, weights, inputs, rotation)

    def mixed(i: int, h: Value) -> Value:
        turn = of_windows if i in config.windowed else rotation
        return attention(graph, f"blk.{i}", h, weights, inputs, caches, config, turn)

    logits = logits_of_blocks(graph, x, mixed, weights, inputs, config, after=True)
    if config.logit_cap:
        logits = graph("softcap", "softcap", x=logits, cap=config.logit_cap)
    return graph, logits


FAMILY = Family(expected_tensors, build)
