"""The families of engine/models/neox.py: GPT-NeoX, Phi 1 to 2, StarCoder 2, StableLM, Nemotron."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from engine.config import ModelConfig
from engine.convert import rope_scaling, windows
from engine.convert.checkpoint import Tensor
from engine.convert.family import ATTENTION, NETWORK, QKV, Family, Source
from engine.convert.fields import Fields
from engine.convert.stacked import stacked
from engine.gguf import writer as gw
from reference.formats.format import Floats

HEADS = re.compile(r"(.+\.[qk]_layernorm)\.norms\.(\d+)\.(weight)")


class Rotary(Family):
    """Common to all of them."""

    eps: ClassVar[str] = "layer_norm_eps"

    def shape(self, config: Fields) -> gw.Keys:
        heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
        part = rope_scaling.part_turned(config, self.part_turned or 1.0)
        return {
            **super().shape(config),
            "feed_forward_length": gw.u32(config.count("intermediate_size")),
            "attention.head_count_kv": gw.u32(config.count("num_key_value_heads", heads)),
            "attention.layer_norm_epsilon": gw.f32(config.real(self.eps, 1e-5)),
            "rope.dimension_count": gw.u32(int(hidden // heads * part)),
            **rope_scaling.keys(config),
        }

    def check(self, config: Fields) -> None:
        super().check(config)
        if not self.head_norms and config.flag("qk_layernorm", False):
            raise config.error("qk_layernorm is true; this family has no norms of heads")


class Phi2(Rotary):
    """Phi, its halves side by side after one norm, and biases everywhere."""

    architectures = ("PhiForCausalLM",)
    about = "Phi 1, 1.5 and 2"
    gguf = "phi2"
    modules: ClassVar = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.final_layernorm",
        "output": "lm_head",
        "attn_norm": "model.layers.{}.input_layernorm",
        "attn_q": "model.layers.{}.self_attn.q_proj",
        "attn_k": "model.layers.{}.self_attn.k_proj",
        "attn_v": "model.layers.{}.self_attn.v_proj",
        "attn_output": "model.layers.{}.self_attn.dense",
        "ffn_up": "model.layers.{}.mlp.fc1",
        "ffn_down": "model.layers.{}.mlp.fc2",
    }
    activation = "hidden_act"
    part_turned = 0.5

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        found = super().sources(config, model)
        if self.tied(config):  # llama.cpp has no Phi 2 without an output of its own
            embedding = found["token_embd.weight"].name
            found["output.weight"] = replace(found["output.weight"], name=embedding)
        return found


class GPTNeoX(Rotary):
    """GPT-NeoX, whose fused tensor has a head's query, key and value, then the next head's.

    An odd part of a head turns with the element behind it, by powers of the odd size.
    """

    architectures = ("GPTNeoXForCausalLM",)
    about = "GPT-NeoX 20B, Pythia, Dolly 2"
    gguf = "gptneox"
    modules: ClassVar = {
        "token_embd": "gpt_neox.embed_in",
        "output_norm": "gpt_neox.final_layer_norm",
        "output": "embed_out",
        "attn_norm": "gpt_neox.layers.{}.input_layernorm",
        "attn_qkv": "gpt_neox.layers.{}.attention.query_key_value",
        "attn_output": "gpt_neox.layers.{}.attention.dense",
        "ffn_norm": "gpt_neox.layers.{}.post_attention_layernorm",
        "ffn_up": "gpt_neox.layers.{}.mlp.dense_h_to_4h",
        "ffn_down": "gpt_neox.layers.{}.mlp.dense_4h_to_h",
    }
    base = "gpt_neox."
    unused = r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias)"
    activation = "hidden_act"
    part_turned = 0.25

    def shape(self, config: Fields) -> gw.Keys:
        parallel = config.flag("use_parallel_residual", True)
        turned = self._turned(config)
        return {
            **super().shape(config),
            "rope.dimension_count": gw.u32(turned + turned % 2),
            "use_parallel_residual": gw.boolean(parallel),
        }

    def check(self, config: Fields) -> None:
        super().check(config)
        kind = rope_scaling.parameters(config).get("rope_type", "default")
        if not config.flag("attention_bias", True):
            raise config.error("attention_bias is false; this family has biases")
        if (turned := self._turned(config)) % 2 and kind not in ("default", "linear"):
            raise config.error(f"rope_type is {kind!r}: {turned} elements of a head, which are odd")

    def computed(self, config: Fields, model: ModelConfig) -> dict[str, Floats]:
        if (turned := self._turned(config)) % 2 == 0:
            return super().computed(config, model)
        powers = np.arange(0, turned, 2) * (1 / turned - 1 / (turned + 1))
        return {"rope_freqs.weight": (model.rope_base**powers).astype(np.float32)}

    def _turned(self, config: Fields) -> int:
        """Elements of a head that turn, as config.json has them."""
        size = config.count("hidden_size") // config.count("num_attention_heads")
        return int(size * rope_scaling.part_turned(config, self.part_turned))

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        return {
            name: apart(source, model) if ".attn_qkv." in name else source
            for name, source in super().sources(config, model).items()
        }


def apart(source: Source, model: ModelConfig) -> Source:
    """Reorder each head's query, key and value to all queries, all keys, all values."""
    size = model.head_dim
    starts = [(3 * h + part) * size for part in range(3) for h in range(model.heads)]
    return replace(source, stretches=tuple((start, start + size) for start in starts))


class StarCoder2(Rotary):
    """StarCoder 2: one half after the other, biases, and a window."""

    architectures = ("Starcoder2ForCausalLM",)
    about = "StarCoder 2"
    gguf = "starcoder2"
    modules: ClassVar = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "attn_norm": "model.layers.{}.input_layernorm",
        "attn_q": "model.layers.{}.self_attn.q_proj",
        "attn_k": "model.layers.{}.self_attn.k_proj",
        "attn_v": "model.layers.{}.self_attn.v_proj",
        "attn_output": "model.layers.{}.self_attn.o_proj",
        "ffn_norm": "model.layers.{}.post_attention_layernorm",
        "ffn_up": "model.layers.{}.mlp.c_fc",
        "ffn_down": "model.layers.{}.mlp.c_proj",
    }
    activation = "hidden_act"
    eps = "norm_epsilon"
    ties = True

    def check(self, config: Fields) -> None:
        super().check(config)
        config.count("num_key_value_heads")  # transformers' default is of one model
        if not config.flag("use_bias", True):
            raise config.error("use_bias is false; this family's projections have biases")

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **windows.of_all(config)}

    def notes(self, config: Fields) -> list[str]:
        return super().notes(config) + windows.notes(config, self.gguf)


class StableLM(Rotary):
    """StableLM, whose heads may each have a norm of its own."""

    architectures = ("StableLmForCausalLM", "StableLMEpochForCausalLM")
    about = "StableLM 3B, Zephyr 3B, StableLM 2 1.6B and 12B"
    gguf = "stablelm"
    modules: ClassVar = {
        **StarCoder2.modules,
        "attn_q_norm": "model.layers.{}.self_attn.q_layernorm",
        "attn_k_norm": "model.layers.{}.self_attn.k_layernorm",
        "ffn_gate": "model.layers.{}.mlp.gate_proj",
        "ffn_up": "model.layers.{}.mlp.up_proj",
        "ffn_down": "model.layers.{}.mlp.down_proj",
    }
    activation = "hidden_act"
    part_turned = 0.25
    head_norms = "qk_layernorm"
    biases: ClassVar = {"use_qkv_bias": QKV}

    def check(self, config: Fields) -> None:
        super().check(config)
        config.count("num_key_value_heads")  # transformers' default is of one model

    def shape(self, config: Fields) -> gw.Keys:
        parallel = config.flag("use_parallel_residual", False)
        return {**super().shape(config), "use_parallel_residual": gw.boolean(parallel)}

    def named(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return stacked(super().named(tensors), HEADS, "head")


class Nemotron(Rotary):
    """Nemotron: one half after the other, ReLU squared, and norms from which the checkpoint takes
    1."""

    architectures = ("NemotronForCausalLM",)
    about = "Nemotron 3 8B, Nemotron 4 and Minitron, dense"
    gguf = "nemotron"
    modules: ClassVar = {
        **StarCoder2.modules,
        "ffn_up": "model.layers.{}.mlp.up_proj",
        "ffn_down": "model.layers.{}.mlp.down_proj",
    }
    activation = "hidden_act"
    eps = "norm_eps"
    biases: ClassVar = {"attention_bias": ATTENTION, "mlp_bias": NETWORK}
    part_turned = 0.5

    def shape(self, config: Fields) -> gw.Keys:
        usual = config.count("hidden_size") // config.count("num_attention_heads")
        head_dim = config.count("head_dim", max(usual, 1))
        turned = int(head_dim * rope_scaling.part_turned(config, self.part_turned))
        return {
            **super().shape(config),
            "context_length": gw.u32(config.count("max_position_embeddings", 4096)),
            "attention.key_length": gw.u32(head_dim),
            "attention.value_length": gw.u32(head_dim),
            "rope.dimension_count": gw.u32(turned),
        }

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        return {
            name: replace(source, added=1.0) if name.endswith("norm.weight") else source
            for name, source in super().sources(config, model).items()
        }
