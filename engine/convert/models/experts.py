"""Hugging Face's mixtures of experts. GGUF has the matrices of all experts of a block as one
tensor, checkpoints have each alone, or gate and up as one."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from engine.config import ModelConfig
from engine.convert import nextn
from engine.convert.checkpoint import Tensor
from engine.convert.family import QKV, Family, Source
from engine.convert.fields import Fields
from engine.convert.json_files import CheckpointError
from engine.convert.models.llama import Granite, Mistral
from engine.convert.models.qwen import Ernie, Hunyuan, Qwen2, Qwen3
from engine.convert.nextn import FURTHER
from engine.convert.stacked import stacked
from engine.gguf import writer as gw
from engine.metadata.architectures import ARCHITECTURES, Routing
from engine.metadata.experts import LISTED
from engine.metadata.mixers import MOST_BLOCKS
from engine.torch_file import StoredTensor

NETWORK = ("gate", "up", "down")


def halves(name: str, tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second half of the rows, of each expert if there are such."""
    assert isinstance(tensor, StoredTensor)
    *before, rows, elements = tensor.dims if len(tensor.dims) > 1 else (1, 1)
    if rows % 2:
        told = f"{tensor.file}: tensor {name} is {list(tensor.dims)}"
        raise CheckpointError(f"{told}: its rows should be gates and as many ups")
    half = replace(tensor, dims=(*before, rows // 2, elements))
    size = {"F32": 4, "F16": 2, "BF16": 2}.get(tensor.dtype, 0)
    return half, replace(half, begin=tensor.begin + rows // 2 * tensor.strides[-2] * size)


def turned(tensor: StoredTensor) -> StoredTensor:
    """Swap the last two dimensions."""
    *before, rows, elements = tensor.dims
    *steps, far, near = tensor.strides
    return replace(tensor, dims=(*before, elements, rows), strides=(*steps, near, far))


def in_halves(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors, gates and ups of all experts apart where they are one tensor of a layer; such
    tensors have no .weight behind their names."""
    found = dict(tensors)
    for name in [name for name in found if name.endswith(".experts.gate_up_proj")]:
        module = name.removesuffix(".gate_up_proj")
        gate, up = halves(name, found.pop(name))
        found |= {f"{module}.gate_proj.weight": gate, f"{module}.up_proj.weight": up}
        if down := found.pop(f"{module}.down_proj", None):
            found[f"{module}.down_proj.weight"] = down
    return found


# Further tensors of DeepSeek's MTP layer, by GGUF's names.
NEXTN = {
    **{name: f"model.layers.{{}}.{name}" for name in ("eh_proj", "enorm", "hnorm", "embed_tokens")},
    "shared_head_head": "model.layers.{}.shared_head.head",
    "shared_head_norm": "model.layers.{}.shared_head.norm",
}


def of_experts(shared: str) -> dict[str, str]:
    """Modules of a router, its experts, and a shared network of this name."""
    return {
        "ffn_gate_inp": "model.layers.{}.mlp.gate",
        **{
            f"ffn_{name}_{kind}": f"model.layers.{{}}.mlp.{module}.{name}_proj"
            for kind, module in (("exps", "experts"), ("shexp", shared))
            for name in NETWORK
        },
    }


MIXTRAL = "model.layers.{}.block_sparse_moe"
OF_MIXTRAL = {
    "ffn_gate_inp": f"{MIXTRAL}.gate",
    "ffn_gate_exps": f"{MIXTRAL}.experts.w1",
    "ffn_up_exps": f"{MIXTRAL}.experts.w3",
    "ffn_down_exps": f"{MIXTRAL}.experts.w2",
}
CHOICE = "model.layers.{}.mlp.gate.e_score_correction_bias"  # of DeepSeek V3


def biases_of_choice(model: ModelConfig, tensor: str, rows: bool = False) -> dict[str, Source]:
    """The bias of the choice of every mixture, by the name that the checkpoint has with a layer's
    number in it; there they may be matrices of a row."""
    assert model.experts
    dims = (model.experts.count,)
    theirs = (1, *dims) if rows else dims
    return {
        f"blk.{i}.exp_probs_b.bias": Source(tensor.format(i), dims, theirs=theirs)
        for i in filter(model.is_mixture, range(model.blocks))
    }


class Mixture:
    """What families of experts have in common: config.json's fields by GGUF's keys.

    `counts` are fields that have to be there; `normed` is the field that says whether weights are
    divided by their sum, if one does.
    """

    gguf: ClassVar[str]
    counts: ClassVar[Mapping[str, str]] = {
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
    }
    normed: ClassVar[str] = ""
    words: ClassVar[Mapping[str, str]] = {"num_experts": "num_local_experts"}

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **self.expert_keys(config)}  # type: ignore[misc]

    def expert_keys(self, config: Fields) -> gw.Keys:
        found = {key: gw.u32(config.count(name)) for key, name in self.counts.items()}
        normed = self.normed and config.flag(self.normed, False)
        if self.normed and normed != self.routing.normed:
            found["expert_weights_norm"] = gw.boolean(normed)
        return found

    def named(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return stacked(super().named(tensors))  # type: ignore[misc]

    def expert_notes(self, config: Fields) -> list[str]:
        usual = self.routing.normed
        if not self.normed or config.flag(self.normed, False) == usual:
            return []
        said = f"its {self.normed} is {str(not usual).lower()}"
        return [f"{said}: llama.cpp, of {self.gguf}, computes with {str(usual).lower()}"]

    @property
    def routing(self) -> Routing:
        """What a file of this family means where it does not say."""
        found = ARCHITECTURES[self.gguf].experts
        assert found
        return found


def check_sigmoid(config: Fields) -> None:
    """Refuse a router whose scores are no sigmoids."""
    if (scores := config.get("scoring_func", "sigmoid")) != "sigmoid":
        raise config.error(f"scoring_func is {scores!r}; this family's router has sigmoid")


class Routed(Mixture):
    """DeepSeek V3's router: sigmoids, groups of experts, and a bias of the choice. The first layers
    are dense, and an MTP layer may follow the last.

    `dense`, `groups` and `times` are what transformers takes where config.json does not say.
    """

    dense: ClassVar[int] = 0
    groups: ClassVar[tuple[int, int]] = (1, 1)
    times: ClassVar[float] = 1.0
    counts: ClassVar = {
        "expert_count": "n_routed_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_shared_count": "n_shared_experts",
        "expert_feed_forward_length": "moe_intermediate_size",
    }
    words: ClassVar[Mapping[str, str]] = {}
    normed = "norm_topk_prob"

    def there(self, config: Fields, tensors: Mapping[str, Tensor]) -> Fields:
        count = config.count(FURTHER) if config.get(FURTHER) else 0
        layers, whole = config.count("num_hidden_layers"), len(tensors)
        joining = [NEXTN["eh_proj"].format(layers + i) for i in range(min(count, whole))]
        return nextn.counted(config, tensors, joining)

    def check(self, config: Fields) -> None:
        super().check(config)  # type: ignore[misc]
        check_sigmoid(config)

    def expert_keys(self, config: Fields) -> gw.Keys:
        groups, kept = self.groups
        return {
            **super().expert_keys(Fields({self.normed: True, **config.values}, config.place)),
            "leading_dense_block_count": gw.u32(leading(config, self.dense)),
            "expert_gating_func": gw.u32(2),
            "expert_group_count": gw.u32(config.count("n_group", groups)),
            "expert_group_used_count": gw.u32(config.count("topk_group", kept)),
            "expert_weights_scale": gw.f32(config.real("routed_scaling_factor", self.times)),
            **nextn.keys_of(config),
        }

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        whole = nextn.whole(model)
        found: dict[str, Source] = super().sources(config, whole)  # type: ignore[misc]
        return found | biases_of_choice(whole, CHOICE) | nextn.sources(model, NEXTN)

    def is_unused(self, name: str, config: Fields) -> bool:
        layer, layers = re.match(r"model\.layers\.(\d+)\.", name), config.count("num_hidden_layers")
        layers += config.get(FURTHER) or 0
        beyond = layer is not None and int(layer[1]) >= layers
        return beyond or super().is_unused(name, config)  # type: ignore[misc]


def leading(config: Fields, usual: int, field: str = "first_k_dense_replace") -> int:
    """How many layers are dense."""
    found = config.get(field, usual)
    if not isinstance(found, int) or found < 0:
        raise config.error(f"{field} must be at least 0, got {found!r}")
    return found


class Mixtral(Mixture, Mistral):
    """LLaMA whose feed-forward networks are mixtures."""

    architectures = ("MixtralForCausalLM",)
    about = "Mixtral"
    kinds = ("mixtral",)
    required = ("rms_norm_eps", "rope_theta")
    modules: ClassVar = {
        **Mistral.modules,
        **OF_MIXTRAL,
    }

    def check(self, config: Fields) -> None:
        super().check(Fields({"sliding_window": None, **config.values}, config.place))


class Qwen3Moe(Mixture, Qwen3):
    """Qwen 3 of experts."""

    architectures: ClassVar[tuple[str, ...]] = ("Qwen3MoeForCausalLM",)
    about = "Qwen 3, of experts"
    gguf = "qwen3moe"
    modules: ClassVar = {
        **Qwen3.modules,
        "ffn_gate_inp": "model.layers.{}.mlp.gate",
        "ffn_gate_exps": "model.layers.{}.mlp.experts.gate_proj",
        "ffn_up_exps": "model.layers.{}.mlp.experts.up_proj",
        "ffn_down_exps": "model.layers.{}.mlp.experts.down_proj",
    }
    counts: ClassVar = {**Mixture.counts, "expert_feed_forward_length": "moe_intermediate_size"}
    normed = "norm_topk_prob"

    def shape(self, config: Fields) -> gw.Keys:
        return {**super().shape(config), **self.listed(config)}

    def listed(self, config: Fields) -> gw.Keys:
        """Which layers have experts, where some have none."""
        every, blocks = config.count("decoder_sparse_step", 1), config.count("num_hidden_layers")
        dense = config.get("mlp_only_layers", [])
        if not isinstance(dense, list) or not all(isinstance(one, int) for one in dense):
            raise config.error(f"mlp_only_layers must be a list of numbers, got {dense!r:.80}")
        if every == 1 and not dense:
            return {}
        if not self.routing.listed:
            raise config.error("a part of its layers is dense: all have experts in this family")
        if blocks > MOST_BLOCKS:
            raise config.error(f"num_hidden_layers is {blocks}: at most {MOST_BLOCKS} run")
        found = [i not in dense and (i + 1) % every == 0 for i in range(blocks)]
        found += [True] * (config.get(FURTHER) or 0)
        return {LISTED: gw.booleans(found)}

    def notes(self, config: Fields) -> list[str]:
        found = super().notes(config) + self.expert_notes(config)
        if self.listed(config):
            said = "a part of its layers is dense"
            found.append(f"{said}: llama.cpp, of {self.gguf}, wants experts in every layer")
        return found


class Qwen2Moe(Qwen3Moe):
    """Qwen 2 of experts, and a network that every token meets, as far as its gate lets it."""

    architectures: ClassVar[tuple[str, ...]] = ("Qwen2MoeForCausalLM",)
    about = "Qwen 1.5 and 2, of experts"
    gguf = "qwen2moe"
    modules: ClassVar = {
        **Qwen3Moe.modules,
        "ffn_gate_inp_shexp": "model.layers.{}.mlp.shared_expert_gate",
        "ffn_gate_shexp": "model.layers.{}.mlp.shared_expert.gate_proj",
        "ffn_up_shexp": "model.layers.{}.mlp.shared_expert.up_proj",
        "ffn_down_shexp": "model.layers.{}.mlp.shared_expert.down_proj",
    }
    counts: ClassVar = {
        **Qwen3Moe.counts,
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    }
    required: ClassVar[tuple[str, ...]] = Qwen2.required
    biases: ClassVar = Qwen2.biases

    def check(self, config: Fields) -> None:
        super().check(config)
        if not config.flag("qkv_bias", True):
            raise config.error("qkv_bias is false; this family has biases of queries and keys")


class Glm4Moe(Routed, Qwen3):
    """Qwen 3 of experts with DeepSeek V3's router, rope of a part of each head, and perhaps biases
    of queries, keys and values."""

    architectures = ("Glm4MoeForCausalLM",)
    about = "GLM 4.5 to 4.7, of experts"
    gguf = "glm4moe"
    modules: ClassVar = {
        **{name: module for name, module in Qwen3.modules.items() if name != "ffn_norm"},
        "post_attention_norm": "model.layers.{}.post_attention_layernorm",
        **of_experts("shared_experts"),
    }
    required = ("num_key_value_heads", "rms_norm_eps")
    dense = 1
    part_turned = 0.5
    head_norms = "use_qk_norm"
    biases: ClassVar = {"attention_bias": QKV}


class Dots1(Routed, Qwen3):
    """Qwen 3 of experts with DeepSeek V3's router."""

    architectures = ("Dots1ForCausalLM",)
    about = "dots.llm1"
    gguf = "dots1"
    modules: ClassVar = {**Qwen3.modules, **of_experts("shared_experts")}
    required = ("num_key_value_heads", "rms_norm_eps")

    def usual_words(self, config: Fields) -> Fields:
        told = {self.normed: False, **config.values}
        if told.get("scoring_func") == "noaux_tc":  # the name of the router that has sigmoids
            told["scoring_func"] = "sigmoid"
        return super().usual_words(Fields(told, config.place))

    def check(self, config: Fields) -> None:
        super().check(config)
        layers = config.count("num_hidden_layers")
        if config.get("sliding_window") and layers > config.count("max_window_layers", layers):
            raise config.error("max_window_layers: layers with windows do not run in this family")


class MiniMaxM2(Mixture, Qwen3):
    """Qwen 3 of experts with one norm for all heads, rope of a part of each head, and DeepSeek V3's
    sigmoids and bias of the choice."""

    architectures = ("MiniMaxM2ForCausalLM",)
    about = "MiniMax M2"
    gguf = "minimax-m2"
    modules: ClassVar = {
        **Qwen3.modules,
        **OF_MIXTRAL,
    }
    counts: ClassVar = {**Mixture.counts, "expert_feed_forward_length": "intermediate_size"}
    required = ("head_dim", "num_key_value_heads", "rms_norm_eps", "rope_theta")
    part_turned = 1.0

    def usual_words(self, config: Fields) -> Fields:
        told = dict(config.values)
        if config.get("rotary_dim"):
            part = config.count("rotary_dim") / config.count("head_dim")
            told.setdefault("partial_rotary_factor", part)
        return super().usual_words(Fields(told, config.place))

    def check(self, config: Fields) -> None:
        super().check(config)
        check_sigmoid(config)
        if (kind := config.get("qk_norm_type", "per_layer")) != "per_layer":
            raise config.error(f"qk_norm_type is {kind!r}; this family has one norm for all heads")

    def expert_keys(self, config: Fields) -> gw.Keys:
        return {**super().expert_keys(config), "expert_gating_func": gw.u32(2)}

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        bias = f"{MIXTRAL}.e_score_correction_bias"
        return super().sources(config, model) | biases_of_choice(model, bias)


class HunyuanMoe(Mixture, Hunyuan):
    """Hunyuan of experts and a network that every token meets. Numbers may be lists, one for each
    layer."""

    architectures = ("HunYuanMoEV1ForCausalLM",)
    about = "Hunyuan A13B"
    gguf = "hunyuan-moe"
    modules: ClassVar = {
        **Hunyuan.modules,
        **of_experts("shared_experts"),
        "ffn_gate_inp": "model.layers.{}.mlp.gate.wg",
        **{f"ffn_{n}_shexp": f"model.layers.{{}}.mlp.shared_mlp.{n}_proj" for n in NETWORK},
    }
    counts: ClassVar = {
        "expert_count": "num_experts",
        "expert_used_count": "moe_topk",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "intermediate_size",
    }
    words: ClassVar = {}
    required = ("rms_norm_eps",)

    def usual_words(self, config: Fields) -> Fields:
        told = {"moe_intermediate_size": config.get("intermediate_size"), **config.values}
        for name in (*self.counts.values(), "num_shared_expert"):
            if isinstance(each := told.get(name), list) and len({*map(repr, each)}) == 1:
                told[name] = each[0]
        return super().usual_words(Fields(told, config.place))

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.flag("use_cla", False):
            raise config.error("use_cla is true: layers that share keys and values do not run here")
        if (shared := config.count("num_shared_expert", 1)) != 1:
            raise config.error(f"num_shared_expert is {shared}; this family has one")


class ErnieMoe(Mixture, Ernie):
    """ERNIE 4.5 of experts and a network that every token meets, with DeepSeek V3's bias of the
    choice; the first layers are dense."""

    architectures = ("Ernie4_5_MoeForCausalLM",)
    about = "ERNIE 4.5, of experts"
    gguf = "ernie4_5-moe"
    modules: ClassVar = {**Ernie.modules, **of_experts("shared_experts")}
    counts: ClassVar = {
        "expert_count": "moe_num_experts",
        "expert_used_count": "moe_k",
        "expert_feed_forward_length": "moe_intermediate_size",
    }
    words: ClassVar = {}
    biases: ClassVar = {}
    unused = r"model\.mtp_.*"
    required = ("num_key_value_heads", "rms_norm_eps", "rope_theta")

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.flag("use_bias", False):
            raise config.error("use_bias is true; this family has no biases")
        interval, end = config.count("moe_layer_interval", 1), config.get("moe_layer_end_index", -1)
        if interval != 1 or -1 != end < config.count("num_hidden_layers") - 1:
            said = f"moe_layer_interval is {interval}, moe_layer_end_index {end}"
            raise config.error(f"{said}: all layers behind the first ones have experts here")

    def expert_keys(self, config: Fields) -> gw.Keys:
        width, shared = config.count("moe_intermediate_size"), "moe_num_shared_experts"
        times = config.count(shared, 2) if config.get(shared, 2) else 0
        return {
            **super().expert_keys(config),
            "expert_shared_feed_forward_length": gw.u32(times * width),
            "leading_dense_block_count": gw.u32(leading(config, 1, "moe_layer_start_index")),
            "interleave_moe_layer_step": gw.u32(1),
        }

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        bias = "model.layers.{}.mlp.moe_statics.e_score_correction_bias"
        return super().sources(config, model) | biases_of_choice(model, bias, rows=True)


class Olmoe(Qwen3Moe):
    """Qwen 3 of experts with one norm for all heads."""

    architectures = ("OlmoeForCausalLM",)
    about = "OLMoE"
    gguf = "olmoe"
    counts: ClassVar = {**Mixture.counts}
    required: ClassVar[tuple[str, ...]] = ("rms_norm_eps",)

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.get("clip_qkv") is not None:
            raise config.error("clip_qkv is set; this family does not cut queries, keys and values")


class GraniteMoe(Mixture, Granite):
    """Granite of experts, of which gate and up are one tensor; and a network that every token
    meets, if there is one."""

    architectures: ClassVar[tuple[str, ...]] = (
        "GraniteMoeForCausalLM",
        "GraniteMoeSharedForCausalLM",
    )
    about = "Granite 3, of experts"
    gguf = "granitemoe"
    modules: ClassVar = {
        **Granite.modules,
        "ffn_gate_inp": "model.layers.{}.block_sparse_moe.router.layer",
        "ffn_gate_exps": "model.layers.{}.block_sparse_moe.input_linear.gate",
        "ffn_up_exps": "model.layers.{}.block_sparse_moe.input_linear.up",
        "ffn_down_exps": "model.layers.{}.block_sparse_moe.output_linear",
        "ffn_gate_shexp": "model.layers.{}.shared_mlp.input_linear.gate",
        "ffn_up_shexp": "model.layers.{}.shared_mlp.input_linear.up",
        "ffn_down_shexp": "model.layers.{}.shared_mlp.output_linear",
    }

    def shape(self, config: Fields) -> gw.Keys:
        found = {**super().shape(config)}
        if config.get("architectures") == [GraniteMoe.architectures[1]]:
            shared = config.count("shared_intermediate_size", 1024)
            found["expert_shared_feed_forward_length"] = gw.u32(shared)
        return found

    def named(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        found = dict(super().named(tensors))
        for name in [name for name in found if name.endswith(".input_linear.weight")]:
            module = name.removesuffix(".weight")
            gate, up = halves(name, found.pop(name))
            found |= {f"{module}.gate.weight": gate, f"{module}.up.weight": up}
        return found


FAMILIES: tuple[Family, ...] = (
    Mixtral(), Qwen2Moe(), Qwen3Moe(), Glm4Moe(), Dots1(), MiniMaxM2(), HunyuanMoe(), ErnieMoe(),
    Olmoe(), GraniteMoe(),
)  # fmt: skip
