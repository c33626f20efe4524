"""The family of engine/models/lfm2.py."""

from dataclasses import replace
from typing import ClassVar

from engine.config import ModelConfig
from engine.convert import rope_scaling
from engine.convert.family import Family, Source
from engine.convert.fields import Fields
from engine.convert.models.experts import Mixture, biases_of_choice, leading
from engine.gguf import writer as gw
from engine.metadata.mixers import MOST_BLOCKS
from engine.recurrent import is_small

KINDS = "full_attention", "conv"  # of layers


class Lfm2(Family):
    """LFM 2, whose layers are attention or convolutions."""

    architectures: ClassVar[tuple[str, ...]] = ("Lfm2ForCausalLM",)
    about = "LFM 2, dense"
    gguf = "lfm2"
    modules: ClassVar = {
        "token_embd": "model.embed_tokens",
        "token_embd_norm": "model.embedding_norm",
        "output": "lm_head",
        **{
            ours: f"model.layers.{{}}.{theirs}"
            for ours, theirs in {
                "attn_norm": "operator_norm",
                "attn_q": "self_attn.q_proj",
                "attn_k": "self_attn.k_proj",
                "attn_v": "self_attn.v_proj",
                "attn_output": "self_attn.out_proj",
                "attn_q_norm": "self_attn.q_layernorm",
                "attn_k_norm": "self_attn.k_layernorm",
                "shortconv.conv": "conv.conv",
                "shortconv.in_proj": "conv.in_proj",
                "shortconv.out_proj": "conv.out_proj",
                "ffn_norm": "ffn_norm",
                "ffn_gate": "feed_forward.w1",
                "ffn_up": "feed_forward.w3",
                "ffn_down": "feed_forward.w2",
            }.items()
        },
    }
    activation = "hidden_act"
    ties = True

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.flag("conv_bias", False):
            raise config.error("conv_bias is true; this family's convolutions have no biases")

    def shape(self, config: Fields) -> gw.Keys:
        heads, kinds = config.count("num_attention_heads"), self.kinds(config)
        kv_heads = config.count("num_key_value_heads", 8)
        return {
            **super().shape(config),
            "context_length": gw.u32(config.count("max_position_embeddings", 128_000)),
            "feed_forward_length": gw.u32(self.ffn(config)),
            "attention.head_count_kv": gw.i32s([kv_heads * (k == KINDS[0]) for k in kinds]),
            "attention.layer_norm_rms_epsilon": gw.f32(config.real("norm_eps", 1e-5)),
            "rope.dimension_count": gw.u32(config.count("hidden_size") // heads),
            "shortconv.l_cache": gw.u32(config.count("conv_L_cache", 3)),
            **rope_scaling.keys(Fields({"rope_theta": 1e6, **config.values}, config.place)),
        }

    def kinds(self, config: Fields) -> list[str]:
        """Whether each layer has attention: by name, or by the list of those that do."""
        blocks = config.count("num_hidden_layers")
        if blocks > MOST_BLOCKS:
            raise config.error(f"num_hidden_layers is {blocks}: at most {MOST_BLOCKS} are read")
        attending = config.get("full_attn_idxs", list(range(blocks)))
        if not isinstance(attending, list):
            raise config.error(f"full_attn_idxs must be a list, got {attending!r:.80}")
        return config.kinds(KINDS, [KINDS[i not in attending] for i in range(blocks)])

    def ffn(self, config: Fields) -> int:
        """The network's width: two thirds of the given size, rounded up to a multiple, unless
        adjustment is disabled."""
        size = config.count("block_ff_dim", config.count("intermediate_size", 12288))
        if not config.flag("block_auto_adjust_ff_dim", True):
            return size
        scaled = int(config.real("block_ffn_dim_multiplier", 1.0) * int(2 * size / 3))
        multiple = config.count("block_multiple_of", 256)
        return -(-scaled // multiple) * multiple

    def tied(self, config: Fields) -> bool:
        return config.flag("tie_embedding", super().tied(config))

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        return {
            name: replace(source, exact=True, theirs=(source.dims[0], 1, source.dims[1]))
            if is_small(name)
            else source
            for name, source in super().sources(config, model).items()
        }

    def _source(self, name: str, dims: tuple[int, ...]) -> Source:
        """Of blk.3.shortconv.conv.weight: model.layers.3.conv.conv.weight."""
        module, _, kind = name.rpartition(".")
        block, _, part = module.removeprefix("blk.").partition(".")
        theirs = self.modules[part or block].format(block)
        return Source(f"{theirs}.{kind}", dims)


class Lfm2Moe(Mixture, Lfm2):
    """LFM 2 with a router of sigmoids and a bias of the choice; the first layers are dense."""

    architectures = ("Lfm2MoeForCausalLM",)
    about = "LFM 2, of experts"
    gguf = "lfm2moe"
    modules: ClassVar = {
        **Lfm2.modules,
        "ffn_gate_inp": "model.layers.{}.feed_forward.gate",
        "ffn_gate_exps": "model.layers.{}.feed_forward.experts.w1",
        "ffn_up_exps": "model.layers.{}.feed_forward.experts.w3",
        "ffn_down_exps": "model.layers.{}.feed_forward.experts.w2",
    }
    counts: ClassVar = {**Mixture.counts, "expert_feed_forward_length": "moe_intermediate_size"}
    words: ClassVar = {}

    def expert_keys(self, config: Fields) -> gw.Keys:
        if not config.flag("norm_topk_prob", True):
            raise config.error("norm_topk_prob is false; this family divides weights by their sum")
        return {
            **super().expert_keys(config),
            "leading_dense_block_count": gw.u32(leading(config, 2, "num_dense_layers")),
            "expert_gating_func": gw.u32(2),
            "expert_weights_scale": gw.f32(config.real("routed_scaling_factor", 1.0)),
        }

    def notes(self, config: Fields) -> list[str]:
        found, of = super().notes(config), f"llama.cpp, of {self.gguf},"
        if config.real("routed_scaling_factor", 1.0) != 1:
            found.append(f"its routed_scaling_factor is its own: {of} computes with 1")
        if not config.flag("use_expert_bias", True):
            found.append(f"its router has no bias: {of} wants one")
        return found

    def ffn(self, config: Fields) -> int:
        """The width of a dense layer's network, as given."""
        return config.count("intermediate_size", 7168)

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        found = super().sources(config, model)
        if config.flag("use_expert_bias", True):
            found |= biases_of_choice(model, "model.layers.{}.feed_forward.expert_bias")
        return found
