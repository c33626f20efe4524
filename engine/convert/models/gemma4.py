"""Gemma 4's text model; the checkpoint may be multimodal."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from engine.config import ModelConfig
from engine.convert.checkpoint import Tensor
from engine.convert.family import Family, Source
from engine.convert.fields import Fields
from engine.convert.models.experts import Mixture, in_halves
from engine.convert.text_part import TextPart
from engine.convert.windows import KINDS
from engine.gguf import writer as gw
from engine.metadata.mixers import MOST_BLOCKS
from engine.models.gemma4 import FAMILY
from reference.formats.format import Floats

WHOLE = KINDS[0]  # full-attention layers
LAYER = "model.layers.{}"
OF_KEYS = re.compile(r"model\.layers\.(\d+)\.self_attn\.(k_proj|v_proj|k_norm)\.weight")
ROPES: Mapping[str, Mapping[str, Any]] = {
    WHOLE: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
    KINDS[1]: {"rope_type": "default", "rope_theta": 1e4},
}
STILL = 1e30  # the divisor of a frequency whose pair does not rotate


class Gemma4(Mixture, TextPart):
    """With or without experts, and with or without embeddings of each layer's own."""

    architectures = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
    about = "Gemma 4, of text alone"
    gguf = "gemma4"
    modules: ClassVar = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
        "per_layer_token_embd": "model.embed_tokens_per_layer",
        "per_layer_model_proj": "model.per_layer_model_projection",
        "per_layer_proj_norm": "model.per_layer_projection_norm",
        **{
            ours: f"{LAYER}.{theirs}"
            for ours, theirs in {
                "attn_norm": "input_layernorm",
                "attn_q": "self_attn.q_proj",
                "attn_k": "self_attn.k_proj",
                "attn_v": "self_attn.v_proj",
                "attn_output": "self_attn.o_proj",
                "attn_q_norm": "self_attn.q_norm",
                "attn_k_norm": "self_attn.k_norm",
                "post_attention_norm": "post_attention_layernorm",
                "ffn_norm": "pre_feedforward_layernorm",
                "ffn_gate": "mlp.gate_proj",
                "ffn_up": "mlp.up_proj",
                "ffn_down": "mlp.down_proj",
                "post_ffw_norm": "post_feedforward_layernorm",
                "inp_gate": "per_layer_input_gate",
                "proj": "per_layer_projection",
                "post_norm": "post_per_layer_input_norm",
                "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
                "post_ffw_norm_1": "post_feedforward_layernorm_1",
                "post_ffw_norm_2": "post_feedforward_layernorm_2",
                "ffn_gate_inp": "router.proj",
                "ffn_gate_exps": "experts.gate_proj",
                "ffn_up_exps": "experts.up_proj",
                "ffn_down_exps": "experts.down_proj",
            }.items()
        },
    }
    alone: ClassVar = {
        "layer_output_scale.weight": f"{LAYER}.layer_scalar",
        "ffn_gate_inp.scale": f"{LAYER}.router.scale",
        "ffn_down_exps.scale": f"{LAYER}.router.per_expert_scale",
    }
    words: ClassVar = {}
    counts: ClassVar = {
        "expert_count": "num_experts",
        "expert_used_count": "top_k_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
    }
    activation = "hidden_activation"
    ties = True

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.flag("attention_bias", False):
            raise config.error("attention_bias is true; this family computes without it")
        if config.get("use_bidirectional_attention") == "all":
            raise config.error("use_bidirectional_attention is 'all': only causal models run")
        for kind, known in ROPES.items():
            rope, usual = self._rope(config, kind), known["rope_type"]
            if (told := rope.get("rope_type")) != usual or rope.real("factor", 1.0) != 1:
                raise rope.error(f"rope_type is {told!r}: want {usual}, without a factor")

    def shape(self, config: Fields) -> gw.Keys:
        kinds, width = self._kinds(config), config.count("head_dim", 256)
        own = [self._of_layer(config, i, kind) for i, kind in enumerate(kinds)]
        whole = {size for (size, _), kind in zip(own, kinds, strict=True) if kind == WHOLE}
        others = {size for (size, _), kind in zip(own, kinds, strict=True) if kind != WHOLE}
        if len(whole) != 1 or others - {width}:
            raise config.error("per_layer_config: layers of a kind have heads of one size here")
        ffn, shared = config.count("intermediate_size"), self._shared(config)
        ffns = [ffn] * len(kinds)
        if config.flag("use_double_wide_mlp", False):
            ffns[len(kinds) - shared :] = [2 * ffn] * shared
        each = config.get("hidden_size_per_layer_input", 0)
        found = {
            **super().shape(config),
            "context_length": gw.u32(config.count("max_position_embeddings", 131_072)),
            "feed_forward_length": gw.i32s(ffns),
            "attention.head_count_kv": gw.i32s([heads for _, heads in own]),
            "attention.layer_norm_rms_epsilon": gw.f32(config.real("rms_norm_eps", 1e-6)),
            "attention.sliding_window": gw.u32(config.count("sliding_window", 512)),
            "attention.sliding_window_pattern": gw.booleans([kind != WHOLE for kind in kinds]),
            "attention.shared_kv_layers": gw.u32(shared),
            # 0 is none, and no key 30
            "final_logit_softcapping": gw.f32(config.real("final_logit_softcapping", 0.0)),
            "embedding_length_per_layer_input": gw.u32(
                config.count("hidden_size_per_layer_input") if each else 0
            ),
        }
        for end, size, kind in (("", whole.pop(), WHOLE), ("_swa", width, KINDS[1])):
            base = self._rope(config, kind).real("rope_theta")
            found |= {
                f"attention.key_length{end}": gw.u32(size),
                f"attention.value_length{end}": gw.u32(size),
                f"rope.dimension_count{end}": gw.u32(size),
                f"rope.freq_base{end}": gw.f32(base),
            }
        return found

    def expert_keys(self, config: Fields) -> gw.Keys:
        return super().expert_keys(config) if config.flag("enable_moe_block", False) else {}

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        found = super().sources(config, model)
        for name, dims in FAMILY.optional_tensors(model).items():
            block, _, part = name.removeprefix("blk.").partition(".")
            if part in self.alone or (
                part == "attn_v.weight" and not self._keys_alone(config, int(block), model)
            ):
                found[name] = self._source(name, dims)
        return found

    def named(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        texts = {re.sub(r"^model\.language_model\.", "model.", n): t for n, t in tensors.items()}
        return in_halves(super().named(texts))

    def computed(self, config: Fields, model: ModelConfig) -> dict[str, Floats]:
        """Divisors of rotary frequencies: finite for the pairs that rotate."""
        rope = self._rope(config, WHOLE)
        part, pairs = rope.real("partial_rotary_factor", 1.0), model.rope_dims // 2
        if not 0 < part <= 1:
            raise rope.error(f"partial_rotary_factor must be above 0 and at most 1, got {part}")
        turned = np.arange(pairs) < int(part * model.rope_dims // 2)
        return {"rope_freqs.weight": np.where(turned, 1, STILL).astype(np.float32)}

    def is_unused(self, name: str, config: Fields) -> bool:
        """Layers that share others' keys and values may have been saved with their own."""
        first = config.count("num_hidden_layers") - self._shared(config)
        of_keys = OF_KEYS.fullmatch(name)
        return (of_keys is not None and int(of_keys[1]) >= first) or super().is_unused(name, config)

    def _kinds(self, config: Fields) -> list[str]:
        blocks = config.count("num_hidden_layers")
        if blocks > MOST_BLOCKS:
            raise config.error(f"num_hidden_layers is {blocks}: at most {MOST_BLOCKS} are read")
        return config.kinds(KINDS, [KINDS[(i + 1) % 6 > 0] for i in range(blocks)])

    def _shared(self, config: Fields) -> int:
        """The number of last layers that share others' keys and values."""
        return config.count("num_kv_shared_layers") if config.get("num_kv_shared_layers", 0) else 0

    def _keys_alone(self, config: Fields, i: int, model: ModelConfig) -> bool:
        """Whether values are keys before their norm."""
        return i not in model.windowed and config.flag("attention_k_eq_v", False)

    def _of_layer(self, config: Fields, i: int, kind: str) -> tuple[int, int]:
        """Head size and number of KV heads: transformers 5.24 gives them for each layer that
        differs, earlier versions for all full-attention layers."""
        width, heads = "head_dim", "num_key_value_heads"
        own = config.part("per_layer_config").part(str(i))
        if strange := set(own.values) - {width, heads}:
            raise own.error(f"{min(strange)} differs between layers: not known here")
        usual = {width: config.count(width, 256), heads: config.count(heads, 4)}
        if kind == WHOLE and not config.get("per_layer_config"):
            usual[width] = config.count("global_head_dim", 512)
            if config.flag("attention_k_eq_v", False):
                usual[heads] = config.count("num_global_key_value_heads", usual[heads])
        return own.count(width, usual[width]), own.count(heads, usual[heads])

    def _rope(self, config: Fields, kind: str) -> Fields:
        """The rope parameters of a kind of layers."""
        told = config.part("rope_parameters").part(kind)
        return Fields({**ROPES[kind], **told.values}, told.place)


FAMILIES: tuple[Family, ...] = (Gemma4(),)
