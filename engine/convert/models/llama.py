"""LLaMA and the families that share its graph: Mistral, SmolLM 3, Arcee, Granite.

A family says what config.json's fields mean and what its tensors are called. To add one whose
graph is another's, derive from that one; then add it to FAMILIES (engine/convert/table.py), and a
checkpoint of it to conformance/llama/test_transformers.py, where it is held against transformers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from engine.config import ModelConfig
from engine.convert import rope_scaling, windows
from engine.convert.family import ATTENTION, NETWORK, Family, Source
from engine.convert.fields import Fields
from engine.convert.text_part import TextPart
from engine.gguf import writer as gw
from engine.metadata.architectures import ARCHITECTURES
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

    activation = "hidden_act"
    biases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "attention_bias": ATTENTION,
        "mlp_bias": NETWORK,
    }
    # Numbers without which transformers takes those of one model.
    required: ClassVar[tuple[str, ...]] = ()

    def check(self, config: Fields) -> None:
        super().check(config)
        for name in self.required:
            (rope_scaling.parameters(config) if name == "rope_theta" else config).real(name)

    def shape(self, config: Fields) -> gw.Keys:
        heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
        head_dim = config.count("head_dim", max(hidden // heads, 1))
        part = rope_scaling.part_turned(config, self.part_turned or 1.0)
        return {
            **super().shape(config),
            "feed_forward_length": gw.u32(config.count("intermediate_size")),
            "attention.head_count_kv": gw.u32(self.kv_heads(config, heads)),
            "attention.key_length": gw.u32(head_dim),
            "attention.value_length": gw.u32(head_dim),
            "attention.layer_norm_rms_epsilon": gw.f32(config.real("rms_norm_eps", 1e-6)),
            "rope.dimension_count": gw.u32(int(head_dim * part)),
            **rope_scaling.keys(config),
        }

    def kv_heads(self, config: Fields, heads: int) -> int:
        return config.count("num_key_value_heads", heads)

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        return {
            name: replace(source, head_dim=model.head_dim)
            if name.split(".")[-2] in ("attn_q", "attn_k")
            else source
            for name, source in super().sources(config, model).items()
        }


class Mistral(TextPart, Llama):
    """LLaMA, but for a window that attention may be limited to."""

    architectures: ClassVar[tuple[str, ...]] = (
        "MistralForCausalLM",
        "Mistral3ForConditionalGeneration",
    )
    about = "Mistral 7B and Nemo, what was made of them, and the text part of Mistral Small 3.1"
    kinds: ClassVar[tuple[str, ...]] = ("mistral", "mistral3")  # of model_type
    window: ClassVar[int | None] = 4096  # where config.json does not say
    biases: ClassVar = {}

    def check(self, config: Fields) -> None:
        super().check(config)
        if (kind := config.get("model_type", self.kinds[0])) not in self.kinds:
            raise config.error(
                f"its text's model_type is {kind!r}; this family runs {self.kinds[0]}"
            )

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **windows.of_all(config, usual=self.window)}

    def notes(self, config: Fields) -> list[str]:
        return super().notes(config) + windows.notes(config, self.gguf, usual=self.window)

    def kv_heads(self, config: Fields, heads: int) -> int:
        told = "num_key_value_heads" in config.values
        return super().kv_heads(config, heads if told else 8)


class Ministral3(Mistral):
    """Mistral with YaRN and a temperature of attention by position."""

    architectures = ("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration")
    about = "Ministral 3, of text alone"
    gguf = "mistral3"
    text_kind = "ministral3"
    kinds = ("ministral3", "mistral3")
    window = None
    # transformers' defaults are sizes of one model
    required = ("head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta")

    def shape(self, config: Fields) -> gw.Keys:
        rope = rope_scaling.parameters(config)
        length = rope.count("original_max_position_embeddings")
        return {
            **super().shape(config),
            "rope.scaling.original_context_length": gw.u32(length),
            "attention.temperature_scale": gw.f32(rope.real("llama_4_scaling_beta")),
        }


class SmolLM3(Llama):
    """LLaMA with layers without rope, every fourth."""

    architectures = ("SmolLM3ForCausalLM",)
    about = "SmolLM 3"
    gguf = "smollm3"
    ties = True
    required = ("num_key_value_heads", "rope_theta")

    def check(self, config: Fields) -> None:
        super().check(config)
        layers, every = range(config.count("num_hidden_layers")), ARCHITECTURES[self.gguf].no_rope
        interval = config.count("no_rope_layer_interval", every)
        turned = config.get("no_rope_layers", [int((i + 1) % interval > 0) for i in layers])
        if turned != [int((i + 1) % every > 0) for i in layers]:
            raise config.error(f"no_rope_layers: this family has no rope in every {every}th alone")

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **windows.where_switched(config, self.gguf)}

    def notes(self, config: Fields) -> list[str]:
        return super().notes(config) + windows.notes_where_switched(config, self.gguf)


class Arcee(Llama):
    """LLaMA without gates, of squared ReLU."""

    architectures = ("ArceeForCausalLM",)
    about = "Arcee AFM, dense"
    gguf = "arcee"
    required = ("rms_norm_eps",)


class Granite(Llama):
    """LLaMA with scales."""

    architectures: ClassVar[tuple[str, ...]] = ("GraniteForCausalLM",)
    about = "Granite 3, dense"
    gguf = "granite"

    def shape(self, config: Fields) -> gw.Keys:
        scales = {
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "attention.scale": "attention_multiplier",
            "logit_scale": "logits_scaling",
        }
        told = {key: config.real(name, 1.0) for key, name in scales.items()}
        if not all(told.values()):
            raise config.error(f"a scale is 0: {told}")
        return {**super().shape(config), **{key: gw.f32(one) for key, one in told.items()}}


def neighbours(rows: Floats, head_dim: int) -> Floats:
    """Rows of each head from pairs (i, i + head_dim / 2), as Hugging Face's rope has them, to
    pairs (2i, 2i + 1), as GGUF's llama does."""
    halves = rows.reshape(len(rows) // head_dim, 2, head_dim // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)
