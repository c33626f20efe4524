"""Gemma (Gemma Team, arXiv 2403.08295), Gemma 2 (arXiv 2408.00118) and Gemma 3 (arXiv 2503.19786),
of text alone.

LLaMA, but for a scaled embedding, to which the output is tied, for rope, which turns halves of a
head, and for GELU. Norms hold what they multiply by: the checkpoints' weights and 1. Gemma 2 has
norms after attention and the network, too, soft caps, and a window in every other block. Gemma 3
has a window in five of six, whose rope has a base of its own, and norms of each head of queries and
keys in place of caps.
"""

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family
from engine.models.network import Network
from engine.models.tensors import Tensors, attention_biases, attention_tensors, qk_norms


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions (rows, elements)."""
    tensors = {
        "attn_norm.weight": (config.hidden,),
        **attention_tensors(config),
        "ffn_norm.weight": (config.hidden,),
        **feed_forward.tensors(config, i),
    }
    if config.architecture != "gemma":
        after = ("post_attention_norm", "post_ffw_norm")
        tensors |= {f"{name}.weight": (config.hidden,) for name in after}
    return tensors | (qk_norms(config) if config.architecture == "gemma3" else {})


def optional_block(config: ModelConfig, i: int) -> Tensors:
    """What a file may have of a block."""
    return attention_biases(config)


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    x, rotation, config = net.embedded(net.config.hidden**0.5), net.rotation(), net.config
    of_windows = net.rotation_of_windows(rotation)

    def mixed(i: int, h: Value) -> Value:
        return net.attention(i, h, of_windows if i in config.windowed else rotation)

    return net.capped(logits_of_blocks(net, x, mixed, after=True))


FAMILY = Family(block, build, optional_block)
