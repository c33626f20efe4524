"""The family of engine/models/granite_hybrid.py."""

from typing import ClassVar

from engine.config import ModelConfig
from engine.convert.family import Family, Source
from engine.convert.fields import Fields
from engine.convert.models.experts import GraniteMoe
from engine.convert.models.mamba import check_steps, of_states
from engine.gguf import writer as gw

KINDS = "attention", "mamba"  # of layers
SPELT = {"full_attention": "attention", "linear_attention": "mamba"}  # by transformers 5


class GraniteHybrid(GraniteMoe):
    """Granite whose layers are attention or Mamba 2, with experts and a network that every token
    meets, or that one alone."""

    architectures = ("GraniteMoeHybridForCausalLM",)
    about = "Granite 4"
    gguf = "granitehybrid"
    modules: ClassVar = {
        **GraniteMoe.modules,
        **{f"ffn_{n}": GraniteMoe.modules[f"ffn_{n}_shexp"] for n in ("gate", "up", "down")},
        "ssm_in": "model.layers.{}.mamba.in_proj",
        "ssm_conv1d": "model.layers.{}.mamba.conv1d",
        "ssm_norm": "model.layers.{}.mamba.norm",
        "ssm_out": "model.layers.{}.mamba.out_proj",
    }
    alone: ClassVar = {
        "ssm_a": "model.layers.{}.mamba.A_log",
        "ssm_d": "model.layers.{}.mamba.D",
        "ssm_dt.bias": "model.layers.{}.mamba.dt_bias",
    }
    words: ClassVar = {**GraniteMoe.words, "layer_types": "layers_block_type"}

    def fits(self, config: Fields) -> bool:
        return KINDS[1] in self.kinds(self.usual_words(config))

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.flag("mamba_proj_bias", False) or not config.flag("mamba_conv_bias", True):
            raise config.error("Mamba's convolutions have biases in this family, projections none")
        check_steps(config)

    def expert_keys(self, config: Fields) -> gw.Keys:
        return super().expert_keys(config) if self.has_experts(config) else {}

    def has_experts(self, config: Fields) -> bool:
        return bool(config.get("num_local_experts", 8))

    def shape(self, config: Fields) -> gw.Keys:
        inner = config.count("mamba_expand", 2) * config.count("hidden_size")
        kv_heads = self.kv_heads(config, config.count("num_attention_heads"))
        shared = gw.u32(config.count("shared_intermediate_size", 1024))
        mixed = self.has_experts(config)
        return {
            **super().shape(config),
            "expert_shared_feed_forward_length" if mixed else "feed_forward_length": shared,
            "attention.head_count_kv": gw.i32s(
                [kv_heads * (kind == KINDS[0]) for kind in self.kinds(config)]
            ),
            "rope.scaling.finetuned": gw.boolean(config.get("position_embedding_type") == "rope"),
            "ssm.conv_kernel": gw.u32(config.count("mamba_d_conv", 4)),
            "ssm.inner_size": gw.u32(inner),
            "ssm.state_size": gw.u32(config.count("mamba_d_state", 256)),
            "ssm.time_step_rank": gw.u32(config.count("mamba_n_heads", 128)),
            "ssm.group_count": gw.u32(config.count("mamba_n_groups", 1)),
        }

    def kinds(self, config: Fields) -> list[str]:
        """The kind of each layer."""
        blocks = config.count("num_hidden_layers")
        told = config.get("layer_types")
        if isinstance(told, list):
            told = [SPELT.get(kind, kind) if isinstance(kind, str) else kind for kind in told]
            config = Fields({**config.values, "layer_types": told}, config.place)
        return config.kinds(KINDS, [KINDS[1]] * blocks)

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        found = super().sources(config, model)
        return {name: of_states(name, source, flat=True) for name, source in found.items()}


class Granite4(GraniteHybrid):
    """Granite 4 all of whose layers attend, dense: a Granite."""

    about = "Granite 4, of attention alone"
    gguf = "granite"

    def fits(self, config: Fields) -> bool:
        return not (super().fits(config) or self.has_experts(config))

    def shape(self, config: Fields) -> gw.Keys:
        found = {k: v for k, v in super().shape(config).items() if not k.startswith("ssm.")}
        kv_heads = self.kv_heads(config, config.count("num_attention_heads"))
        return {**found, "attention.head_count_kv": gw.u32(kv_heads)}


class Granite4Moe(Granite4):
    """The same of experts, with rope."""

    about = "Granite 4, of attention alone and experts"
    gguf = "granitemoe"

    def fits(self, config: Fields) -> bool:
        return not GraniteHybrid.fits(self, config) and self.has_experts(config)

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.get("position_embedding_type") != "rope":
            raise config.error("position_embedding_type is not rope, which this family has")


FAMILIES: tuple[Family, ...] = (GraniteHybrid(), Granite4(), Granite4Moe())
