"""DeepSeek-V2 and V3: latent attention, whose kv_b GGUF has in two parts, one of them turned; and
MiniCPM 3, whose kv_b it has as it is."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np

from engine.config import ModelConfig
from engine.convert import rope_scaling
from engine.convert.family import Family, Source
from engine.convert.fields import Fields
from engine.convert.models.experts import Mixture, Routed, leading
from engine.convert.models.qwen import Qwen2
from engine.gguf import writer as gw
from reference.formats.format import Floats

LATENT = ("attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv_a_mqa", "attn_kv_a_norm")
EPS = 1e-6  # of the norms of latent vectors, whatever rms_norm_eps says


class DeepSeekV2(Mixture, Family):
    """DeepSeek-V2, whose router chooses among all experts, not groups of them."""

    architectures: ClassVar[tuple[str, ...]] = ("DeepseekV2ForCausalLM",)
    about: ClassVar[str] = "DeepSeek-V2 Lite, and what else chooses among all experts"
    gguf = "deepseek2"
    modules: ClassVar = {
        **Qwen2.modules,
        "attn_q_a": "model.layers.{}.self_attn.q_a_proj",
        "attn_q_a_norm": "model.layers.{}.self_attn.q_a_layernorm",
        "attn_q_b": "model.layers.{}.self_attn.q_b_proj",
        "attn_kv_a_mqa": "model.layers.{}.self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "model.layers.{}.self_attn.kv_a_layernorm",
        "attn_k_b": "model.layers.{}.self_attn.kv_b_proj",
        "attn_v_b": "model.layers.{}.self_attn.kv_b_proj",
        "ffn_gate_inp": "model.layers.{}.mlp.gate",
        **{
            f"ffn_{name}_{kind}": f"model.layers.{{}}.mlp.{module}.{name}_proj"
            for kind, module in (("exps", "experts"), ("shexp", "shared_experts"))
            for name in ("gate", "up", "down")
        },
    }
    activation = "hidden_act"
    ropes = ("default", "linear", "yarn")
    counts: ClassVar = Routed.counts
    words: ClassVar[Mapping[str, str]] = {}
    off: ClassVar[tuple[str, ...]] = ("attention_bias", "mlp_bias", "norm_topk_prob")
    method: ClassVar[str] = "greedy"

    def check(self, config: Fields) -> None:
        super().check(config)
        for name in self.off:
            if config.flag(name, False):
                raise config.error(f"{name} is true; this family computes without it")
        if (method := config.get("topk_method", self.method)) != self.method:
            raise config.error(f"topk_method is {method!r}; this family has {self.method}")
        if config.real("rms_norm_eps", EPS) != EPS:
            raise config.error(f"rms_norm_eps: norms of latent vectors have {EPS}, and all one")
        rope = rope_scaling.parameters(config)
        if rope_scaling.keys(config).get("rope.scaling.type") == gw.text("yarn"):
            told = rope.real("mscale_all_dim", 0.0)
            if not told or rope.real("mscale", 0.0) != told or rope.get("attention_factor"):
                raise rope.error("mscale and mscale_all_dim: this family wants them alike")

    def shape(self, config: Fields) -> gw.Keys:
        rank, turned = config.count("kv_lora_rank"), config.count("qk_rope_head_dim")
        vector = config.get("q_lora_rank") is not None
        rope = dict(rope_scaling.keys(config))
        if "rope.scaling.attn_factor" in rope:  # YaRN's, which is 1 here and steepens scores
            del rope["rope.scaling.attn_factor"]
            scale = rope_scaling.parameters(config).real("mscale_all_dim")
            rope["rope.scaling.yarn_log_multiplier"] = gw.f32(0.1 * scale)
        return {
            **super().shape(config),
            "feed_forward_length": gw.u32(config.count("intermediate_size")),
            "attention.head_count_kv": gw.u32(1),
            "attention.key_length": gw.u32(rank + turned),
            "attention.value_length": gw.u32(rank),
            "attention.key_length_mla": gw.u32(config.count("qk_nope_head_dim") + turned),
            "attention.value_length_mla": gw.u32(config.count("v_head_dim")),
            "attention.kv_lora_rank": gw.u32(rank),
            **({"attention.q_lora_rank": gw.u32(config.count("q_lora_rank"))} if vector else {}),
            "attention.layer_norm_rms_epsilon": gw.f32(EPS),
            "rope.dimension_count": gw.u32(turned),
            **rope,
            "leading_dense_block_count": gw.u32(leading(config, 0)),
            "expert_weights_scale": gw.f32(config.real("routed_scaling_factor", 1.0)),
            **self.expert_keys(config),
        }

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        own = model.latent
        assert own
        nope = own.key - model.rope_dims
        step = nope + own.value
        starts = [h * step for h in range(model.heads)]
        rows = {
            "attn_k_b": (tuple((at, at + nope) for at in starts), _turned),
            "attn_v_b": (tuple((at + nope, at + step) for at in starts), None),
        }
        theirs = model.heads * step, own.kv_rank
        found = super().sources(config, model)
        for name, source in found.items():
            if part := rows.get(name.split(".")[-2]):
                stretches, through = part
                found[name] = replace(source, stretches=stretches, through=through, theirs=theirs)
        return found


def _turned(rows: Floats) -> Floats:
    return np.ascontiguousarray(rows.T)


class MiniCPM3(Family):
    """Latent attention without experts, and scales."""

    architectures = ("MiniCPM3ForCausalLM",)
    about = "MiniCPM 3"
    gguf = "minicpm3"
    modules: ClassVar = {
        **Qwen2.modules,
        **{name: DeepSeekV2.modules[name] for name in LATENT},
        "attn_kv_b": "model.layers.{}.self_attn.kv_b_proj",
    }
    activation = "hidden_act"
    ties = True
    ropes = ("default", "linear", "longrope")

    def usual_words(self, config: Fields) -> Fields:
        """With the sizes that a null of a scale stands for."""
        config = super().usual_words(config)
        depth, width = config.count("num_hidden_layers") ** 0.5, config.count("hidden_size")
        usual = {"scale_depth": depth, "dim_model_base": width}
        nulls = {name: size for name, size in usual.items() if config.values.get(name, 1) is None}
        return Fields({**config.values, **nulls}, config.place)

    def check(self, config: Fields) -> None:
        super().check(config)
        for name in ("attention_bias", "mlp_bias"):
            if config.flag(name, False):
                raise config.error(f"{name} is true; this family computes without it")
        heads = config.count("num_attention_heads")
        if config.count("num_key_value_heads", heads) != heads:
            raise config.error("num_key_value_heads: all heads have keys in this family")

    def shape(self, config: Fields) -> gw.Keys:
        heads, hidden = config.count("num_attention_heads"), config.count("hidden_size")
        turned, blocks = config.count("qk_rope_head_dim"), config.count("num_hidden_layers")
        vector = config.values.get("q_lora_rank", 768) is not None
        rope = dict(rope_scaling.keys(config))
        if rope.pop("rope.scaling.attn_factor", gw.f32(1.0)) != gw.f32(1.0):
            raise config.error("rope of this family leaves sizes as they are: no attention_factor")
        return {
            **super().shape(config),
            "feed_forward_length": gw.u32(config.count("intermediate_size")),
            "attention.head_count_kv": gw.u32(heads),
            "attention.key_length": gw.u32(config.count("qk_nope_head_dim") + turned),
            "attention.value_length": gw.u32(config.count("v_head_dim", hidden // heads)),
            "attention.kv_lora_rank": gw.u32(config.count("kv_lora_rank")),
            **({"attention.q_lora_rank": gw.u32(config.count("q_lora_rank"))} if vector else {}),
            "attention.layer_norm_rms_epsilon": gw.f32(config.real("rms_norm_eps", 1e-5)),
            "rope.dimension_count": gw.u32(turned),
            **rope,
            "embedding_scale": gw.f32(config.real("scale_emb", 12.0)),
            "residual_scale": gw.f32(config.real("scale_depth", 1.4) / blocks**0.5),
            "logit_scale": gw.f32(hidden / config.count("dim_model_base", 256)),
        }

    def notes(self, config: Fields) -> list[str]:
        found = super().notes(config)
        told = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256.0}
        if any(config.real(name, usual) != usual for name, usual in told.items()):
            found.append(f"its scales are its own: llama.cpp, of {self.gguf}, has those of the 4B")
        if config.real("rms_norm_eps", 1e-5) != EPS:
            said = f"norms of its latent vectors have an eps of {EPS}"
            found.append(f"{said}: llama.cpp, of {self.gguf}, computes with that of the others")
        return found


class DeepSeekV3(Routed, DeepSeekV2):
    """DeepSeek-V2 with a router of its own."""

    architectures = ("DeepseekV3ForCausalLM",)
    about = "DeepSeek V3 and R1, and what else has their router"
    off = ("attention_bias", "mlp_bias")
    method = "noaux_tc"
    dense, groups, times = 3, (8, 4), 2.5

    def check(self, config: Fields) -> None:
        super().check(config)
        if not config.flag("rope_interleave", True):
            raise config.error("rope_interleave is false; rope of this family turns neighbours")


FAMILIES: tuple[Family, ...] = (DeepSeekV2(), DeepSeekV3(), MiniCPM3())
