"""LLaMA (Touvron et al., arXiv 2302.13971; grouped queries: 2307.09288), dense.

Tensors by their GGUF names. A file may tie `output` to `token_embd` and may have biases of
attention and of networks, as Granite's models of code have, which are LLaMA.
InternLM 2 (Cai et al., arXiv 2403.17297) and ERNIE 4.5 (Baidu, 2025) are LLaMA. SmolLM 3
(Bakouch et al., 2025) is LLaMA whose every fourth block is without rope, Granite 3 (IBM, 2024) one
with scales of the embedding, of attention, of what a block adds, and of the logits, MiniCPM (Hu et
al., arXiv 2404.06395) one with all of these but attention's and, from version 4 on, divisors of
rope for short and long contexts, Arcee's AFM (2025) one without gates, of squared ReLU, and
Ministral 3 (Mistral AI, arXiv 2601.08584) one whose queries are longer in every further length of
the context that it was first trained for, as Llama 4's.
"""

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import experts, feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family
from engine.models.network import Network
from engine.models.tensors import Tensors, attention_biases, attention_tensors


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions (rows, elements)."""
    return {
        "attn_norm.weight": (config.hidden,),
        **attention_tensors(config),
        "ffn_norm.weight": (config.hidden,),
        **feed_forward.tensors(config, i),
    }


def optional_block(config: ModelConfig, i: int) -> Tensors:
    """What a file may have of a block."""
    own = attention_biases(config)
    if config.architecture == "ernie4_5-moe":
        own = own | experts.optional(config, i)
    return own if config.is_mixture(i) else {**own, **feed_forward.biases(config)}


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    x, rotation = net.embedded(net.config.scales.embedding), net.rotation()
    of_queries = net.rotation_of_queries(rotation)

    def mixed(i: int, h: Value) -> Value:
        turn = rotation if net.config.has_rope(i) else None
        return net.attention(i, h, turn, "rope_norm", of_queries)

    return net.scaled("logits_scaled", logits_of_blocks(net, x, mixed), net.config.scales.logits)


FAMILY = Family(block, build, optional_block)
