"""Qwen 2 and 3 and the dense families derived from them: Hunyuan, Seed-OSS, Ernie 4.5, Phi 3."""

from collections.abc import Mapping
from typing import ClassVar

from engine.config import ModelConfig
from engine.convert import rope_scaling, windows
from engine.convert.family import ATTENTION, NETWORK, QKV, Family, Source
from engine.convert.fields import Fields
from engine.convert.models.llama import Llama
from engine.gguf import writer as gw


class Qwen2(Llama):
    """LLaMA with biases of queries, keys and values, and the checkpoint's own order of rows."""

    architectures: ClassVar[tuple[str, ...]] = ("Qwen2ForCausalLM",)
    about = "Qwen 1.5 to 2.5, dense"
    gguf = "qwen2"
    biases: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # that may be missing

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **windows.where_switched(config, self.gguf)}

    def notes(self, config: Fields) -> list[str]:
        return super().notes(config) + windows.notes_where_switched(config, self.gguf)

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        return Family.sources(self, config, model)


class Qwen3(Qwen2):
    """Qwen 2 with norms of each head of queries and keys in place of biases."""

    architectures: ClassVar[tuple[str, ...]] = ("Qwen3ForCausalLM",)
    about = "Qwen 3, dense"
    gguf = "qwen3"
    modules: ClassVar = {
        **Qwen2.modules,
        "attn_q_norm": "model.layers.{}.self_attn.q_norm",
        "attn_k_norm": "model.layers.{}.self_attn.k_norm",
    }
    required: ClassVar[tuple[str, ...]] = ("head_dim", "num_key_value_heads")
    biases: ClassVar[Mapping[str, tuple[str, ...]]] = {"attention_bias": ATTENTION}


class Hunyuan(Qwen3):
    """Qwen 3 with norms of queries and keys after rope, whose base an alpha may raise."""

    architectures = ("HunYuanDenseV1ForCausalLM",)
    about = "Hunyuan 0.5B to 7B and Hunyuan MT, dense"
    gguf = "hunyuan-dense"
    modules: ClassVar = {
        **Qwen2.modules,
        "attn_q_norm": "model.layers.{}.self_attn.query_layernorm",
        "attn_k_norm": "model.layers.{}.self_attn.key_layernorm",
    }
    required: ClassVar[tuple[str, ...]] = ("head_dim", "rms_norm_eps")

    def usual_words(self, config: Fields) -> Fields:
        """With "dynamic" rope of a fixed alpha as what it is: plain rope of another base."""
        rope = rope_scaling.parameters(config)
        if rope.get("rope_type", rope.get("type")) == "dynamic" and rope.get("alpha"):
            whole = config.count("hidden_size") // config.count("num_attention_heads")
            size = max(config.count("head_dim", max(whole, 1)), 3)
            base = rope.real("rope_theta", 10000.0) * rope.real("alpha") ** (size / (size - 2))
            plain = {"rope_scaling": None, "rope_parameters": {"rope_theta": base}}
            config = Fields({**config.values, **plain}, config.place)
        return super().usual_words(config)


class Exaone(Qwen2):
    """Qwen 2 without biases, and GPT-2's names."""

    architectures = ("ExaoneForCausalLM",)
    about = "EXAONE 3 and 3.5"
    gguf = "exaone"
    modules: ClassVar = {
        "token_embd": "transformer.wte",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
        "attn_norm": "transformer.h.{}.ln_1",
        "attn_q": "transformer.h.{}.attn.attention.q_proj",
        "attn_k": "transformer.h.{}.attn.attention.k_proj",
        "attn_v": "transformer.h.{}.attn.attention.v_proj",
        "attn_output": "transformer.h.{}.attn.attention.out_proj",
        "ffn_norm": "transformer.h.{}.ln_2",
        "ffn_gate": "transformer.h.{}.mlp.c_fc_0",
        "ffn_up": "transformer.h.{}.mlp.c_fc_1",
        "ffn_down": "transformer.h.{}.mlp.c_proj",
    }
    base = "transformer."
    words: ClassVar = {
        "num_hidden_layers": "num_layers",
        "rms_norm_eps": "layer_norm_epsilon",
        "hidden_act": "activation_function",
    }
    biases: ClassVar = {"attention_bias": ATTENTION}
    required = ("num_key_value_heads", "rms_norm_eps", "rope_theta")


class SeedOss(Qwen2):
    """Qwen 2 with or without biases."""

    architectures = ("SeedOssForCausalLM",)
    about = "Seed-OSS"
    gguf = "seed_oss"
    modules: ClassVar = {
        **Qwen2.modules,
        "post_attention_norm": "model.layers.{}.post_attention_layernorm",
    }
    required = ("head_dim", "num_key_value_heads")
    biases: ClassVar = {
        "attention_bias": QKV,
        "attention_out_bias": ("attn_output",),
        "mlp_bias": NETWORK,
    }
    biased = ("attention_bias",)


class Ernie(Qwen2):
    """LLaMA, whose checkpoint has rows in GGUF's order."""

    architectures: ClassVar[tuple[str, ...]] = ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")
    about = "ERNIE 4.5, dense"
    gguf = "ernie4_5"
    ties = True
    biases: ClassVar = {"use_bias": (*ATTENTION, *NETWORK)}
    required: ClassVar[tuple[str, ...]] = (
        "head_dim",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_theta",
    )


class Phi3(Qwen2):
    """LLaMA with fused tensors and long rope."""

    architectures = ("Phi3ForCausalLM",)
    about = "Phi 3, Phi 4 and Phi 4 mini, dense"
    gguf = "phi3"
    modules: ClassVar = {
        **Qwen2.modules,
        "attn_qkv": "model.layers.{}.self_attn.qkv_proj",
        "ffn_up": "model.layers.{}.mlp.gate_up_proj",
    }
    required = ("max_position_embeddings", "rms_norm_eps")
    part_turned = 1.0
    ropes = ("default", "linear", "yarn", "longrope")

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **windows.of_all(config)}

    def notes(self, config: Fields) -> list[str]:
        return super().notes(config) + windows.notes(config, self.gguf)
