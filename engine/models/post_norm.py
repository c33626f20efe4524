"""OLMo 2 (OLMo Team, arXiv 2501.00656), OLMo 3 (2025) and GLM 4 (GLM Team, arXiv 2406.12793; its
models of 2025) and EXAONE 4 (LG AI Research, arXiv 2507.11407), dense: what attention and the
network give is normalised before it is added.

OLMo has no norms before them, but of all queries, and of all keys, before rope turns halves of a
head; OLMo 3, an `olmo2` in GGUF, has windows, and stretches rope in blocks without one alone.
EXAONE's norms are of each head, and where it has windows rope turns in blocks with one alone. GLM 4
has LLaMA's norms as well, gate and up as one tensor, and rope of a part of a head.
"""

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family, Rows
from engine.models.network import Network
from engine.models.tensors import Tensors, attention_biases, attention_tensors, qk_norms


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions (rows, elements)."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    tensors = {
        **attention_tensors(config),
        "post_attention_norm.weight": (config.hidden,),
        "post_ffw_norm.weight": (config.hidden,),
    }
    if config.architecture != "glm4":
        of_all = {"attn_q_norm.weight": (q,), "attn_k_norm.weight": (kv,)}
        norms = of_all if config.architecture == "olmo2" else qk_norms(config)
        return tensors | norms | feed_forward.tensors(config, i)
    tensors |= {f"{name}_norm.weight": (config.hidden,) for name in ("attn", "ffn")}
    return tensors | feed_forward.joined_tensors(config, i)


def optional_block(config: ModelConfig, i: int) -> Tensors:
    """What a file may have of a block."""
    return attention_biases(config)


def parts(config: ModelConfig) -> dict[str, Rows]:
    """Gate and up of GLM 4, out of one tensor."""
    return feed_forward.joined_parts(config) if config.architecture == "glm4" else {}


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    x, rotation, config = net.embedded(), net.rotation(), net.config
    of_windows = net.rotation_of_windows(rotation)
    rope = "rope_norm" if config.architecture == "glm4" else "rope_neox"

    def mixed(i: int, h: Value) -> Value:
        turn = of_windows if i in config.windowed else rotation
        return net.attention(i, h, turn if config.has_rope(i) else None, rope)

    return logits_of_blocks(net, x, mixed, after=True)


FAMILY = Family(block, build, optional_block, parts=parts)
