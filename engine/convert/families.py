"""The registry: each architecture of Hugging Face's that this engine runs, one small class each.

A family says what config.json's fields mean and what its tensors are called. To add one whose
graph is another's, derive from that one; then add it to FAMILIES, and a checkpoint of it to
conformance/llama/test_transformers.py, where transformers' logits are the judge.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from engine import gguf_writer as gw
from engine.config import ModelConfig
from engine.convert import rope_scaling
from engine.convert.falcon import Falcon
from engine.convert.family import Family, Source
from engine.convert.fields import Fields
from engine.convert.opt import OPT
from reference.formats.format import Floats


class Llama(Family):
    """LLaMA, dense: Llama 1 to 3, and all that was trained in its shape."""

    architectures: ClassVar[tuple[str, ...]] = ("LlamaForCausalLM", "LLaMAForCausalLM")
    about: ClassVar[str] = "Llama 1 to 3, TinyLlama, SmolLM 1 and 2, Yi, Vicuna"
    gguf: ClassVar[str] = "llama"
    modules: ClassVar[Mapping[str, str]] = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "attn_norm": "model.layers.{}.input_layernorm",
        "attn_q": "model.layers.{}.self_attn.q_proj",
        "attn_k": "model.layers.{}.self_attn.k_proj",
        "attn_v": "model.layers.{}.self_attn.v_proj",
        "attn_output": "model.layers.{}.self_attn.o_proj",
        "ffn_norm": "model.layers.{}.post_attention_layernorm",
        "ffn_gate": "model.layers.{}.mlp.gate_proj",
        "ffn_up": "model.layers.{}.mlp.up_proj",
        "ffn_down": "model.layers.{}.mlp.down_proj",
    }
    # Buffers that old checkpoints hold, and that are computed here.
    unused: ClassVar[str] = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"

    activation = "hidden_act"

    def shape(self, config: Fields) -> gw.Keys:
        heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
        head_dim = config.count("head_dim", max(hidden // heads, 1))
        return {
            "context_length": gw.u32(config.count("max_position_embeddings", 2048)),
            "embedding_length": gw.u32(hidden),
            "block_count": gw.u32(config.count("num_hidden_layers")),
            "feed_forward_length": gw.u32(config.count("intermediate_size")),
            "attention.head_count": gw.u32(heads),
            "attention.head_count_kv": gw.u32(self.kv_heads(config, heads)),
            "attention.key_length": gw.u32(head_dim),
            "attention.value_length": gw.u32(head_dim),
            "attention.layer_norm_rms_epsilon": gw.f32(config.real("rms_norm_eps", 1e-6)),
            "rope.dimension_count": gw.u32(head_dim),
            "vocab_size": gw.u32(config.count("vocab_size")),
        } | dict(rope_scaling.keys(config))

    def kv_heads(self, config: Fields, heads: int) -> int:
        return config.count("num_key_value_heads", heads)

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        return {
            name: replace(source, head_dim=model.head_dim)
            if name.split(".")[-2] in ("attn_q", "attn_k")
            else source
            for name, source in super().sources(config, model).items()
        }


class Mistral(Llama):
    """LLaMA, but for a window that attention may be limited to."""

    architectures = ("MistralForCausalLM",)
    about = "Mistral 7B from v0.2 on, and what was made of it"

    def check(self, config: Fields) -> None:
        super().check(config)
        # null is no window, while a config without the field means transformers' default
        window = config.values.get("sliding_window", 4096)
        if window is not None and window < config.count("max_position_embeddings", 131072):
            raise config.error(
                f"sliding_window is {window}, and this engine attends to the whole context; up to"
                f" {window} tokens are the same without it: set it to null and"
                f" max_position_embeddings to {window}"
            )

    def kv_heads(self, config: Fields, heads: int) -> int:
        told = "num_key_value_heads" in config.values
        return super().kv_heads(config, heads if told else 8)


class Qwen2(Llama):
    """LLaMA with biases of queries, keys and values; written as what it is, a `llama`."""

    architectures = ("Qwen2ForCausalLM",)
    about = "Qwen 1.5 to 2.5, dense"

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.flag("use_sliding_window", False):
            raise config.error("use_sliding_window: this engine attends to the whole context")


FAMILIES: tuple[Family, ...] = (Llama(), Mistral(), Qwen2(), Falcon(), OPT())


def family_of(config: Fields) -> Family:
    """The family that config.json's `architectures` names."""
    names = config.get("architectures", [])
    if not isinstance(names, list) or len(names) != 1:
        raise config.error(f"architectures must name one, got {names!r}")
    for family in FAMILIES:
        if names[0] in family.architectures:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise config.error(f"architecture {names[0]!r} is not known; known are {known}")


def neighbours(rows: Floats, head_dim: int) -> Floats:
    """Rows of each head from pairs (i, i + head_dim / 2), as Hugging Face's rope has them, to
    pairs (2i, 2i + 1), as GGUF's llama does."""
    halves = rows.reshape(len(rows) // head_dim, 2, head_dim // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)
