"""Qwen 2 (Yang et al., arXiv 2407.10671) and Qwen 3 (arXiv 2505.09388), dense or of experts, and
the text of those that see; OLMoE (Muennighoff et al., arXiv 2409.02060), GLM 4.5 to 4.7 of experts
(arXiv 2508.06471), dots.llm1 (arXiv 2506.05767), MiniMax M2 (MiniMax, 2025), Hunyuan (Tencent,
2025), dense or of experts, and Seed-OSS (ByteDance, 2025).

LLaMA, but for rope, which turns halves of a head, and for what queries and keys have before it: a
bias, which values have, too (`qwen2`, and any other file that has it), a norm of each head
(`qwen3`, `dots1`, perhaps `glm4moe`, and behind rope Hunyuan), or a norm of all together (`olmoe`,
`minimax-m2`).
"""

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import experts, feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family
from engine.models.network import Network
from engine.models.tensors import (
    Tensors,
    attention_biases,
    attention_tensors,
    qk_norms,
    qkv_biases,
)


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions (rows, elements)."""
    tensors = {
        "attn_norm.weight": (config.hidden,),
        **attention_tensors(config),
        f"{before_network(config)}.weight": (config.hidden,),
        **feed_forward.tensors(config, i),
    }
    match config.architecture:
        case "glm4moe" | "seed_oss" | "exaone":
            return tensors
        case "qwen2" | "qwen2moe" | "qwen2vl":
            return tensors | qkv_biases(config)
        case "olmoe" | "minimax-m2":
            heads = {"q": config.heads, "k": config.kv_heads}
            sizes = {n: (count * config.head_dim,) for n, count in heads.items()}
            return tensors | {f"attn_{n}_norm.weight": size for n, size in sizes.items()}
    return tensors | qk_norms(config)


def before_network(config: ModelConfig) -> str:
    """What a file calls the norm before the feed-forward network."""
    named = config.architecture in ("glm4moe", "seed_oss")
    return "post_attention_norm" if named else "ffn_norm"


def optional_block(config: ModelConfig, i: int) -> Tensors:
    """What a file may have of a block."""
    tensors = experts.optional(config, i) | attention_biases(config)
    return tensors | qk_norms(config) if config.architecture == "glm4moe" else tensors


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    x, rotation = net.embedded(), net.rotation()

    def mixed(i: int, h: Value) -> Value:
        if net.config.architecture in ("hunyuan-dense", "hunyuan-moe"):
            return attention_normed_after_rope(net, i, h, rotation)
        return net.attention(i, h, rotation)

    return logits_of_blocks(net, x, mixed)


def attention_normed_after_rope(net: Network, i: int, h: Value, rotation: Value) -> Value:
    """Block i's attention of h, queries and keys normalised after rope."""
    q, k, v = (net.project(f"blk.{i}.attn_{name}", h) for name in "qkv")
    q, k = (
        net.rms_norm(f"blk.{i}.attn_{name}_norm", x.view(f"{x.dims[0]}*{x.dims[1]}", x.dims[2]))
        for name, x in zip("qk", net.turned("rope_neox", i, q, k, rotation), strict=True)
    )
    return net.attend(i, q, k, v)


FAMILY = Family(block, build, optional_block)
