"""The families of engine/models/qwen3next.py.

Checkpoints of Qwen 3 Next have what queries, keys, values and z come out of as one matrix, key by
key; those of Qwen 3.5 have heads of values in the order of their keys, while GGUF has every so
many-th of one key. Norms but those of delta nets hold what they have more than 1.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np

from engine.config import ModelConfig
from engine.convert import nextn
from engine.convert.checkpoint import Tensor
from engine.convert.family import Source
from engine.convert.fields import Fields
from engine.convert.models.experts import Qwen2Moe, in_halves
from engine.convert.models.mamba import decay
from engine.convert.models.qwen import Qwen3
from engine.convert.text_part import PlacedText
from engine.gguf import writer as gw
from engine.metadata.mixers import MOST_BLOCKS
from engine.recurrent import Ssm
from reference.formats.format import Floats

KINDS = "full_attention", "linear_attention"  # of layers
EPS = 1e-6  # eps of the norms of delta nets' queries and keys, whatever the other norms' is
LINEAR = "model.layers.{}.linear_attn"
NEXTN = {  # further tensors of the MTP layer, by GGUF's names
    "eh_proj": "mtp.fc",
    "enorm": "mtp.pre_fc_norm_embedding",
    "hnorm": "mtp.pre_fc_norm_hidden",
    "shared_head_norm": "mtp.norm",
}


class DeltaNets(Qwen3):
    """Qwen 3 whose blocks are gated delta nets, but for some that attend."""

    gguf: ClassVar[str]
    modules: ClassVar = {
        **Qwen3.modules,
        "post_attention_norm": "model.layers.{}.post_attention_layernorm",
        "ssm_conv1d": f"{LINEAR}.conv1d",
        "ssm_norm": f"{LINEAR}.norm",
        "ssm_out": f"{LINEAR}.out_proj",
    }
    alone: ClassVar = {"ssm_a": f"{LINEAR}.A_log", "ssm_dt.bias": f"{LINEAR}.dt_bias"}
    unused = r"mtp\..*"  # MTP tensors, except those that are used
    part_turned = 0.25

    def there(self, config: Fields, tensors: Mapping[str, Tensor]) -> Fields:
        layers = {name.split(".")[2] for name in tensors if name.startswith("mtp.layers.")}
        return nextn.counted(config, tensors, [NEXTN["eh_proj"]] * len(layers))

    def check(self, config: Fields) -> None:
        super().check(config)
        if config.real("rms_norm_eps", EPS) != EPS:
            raise config.error(f"rms_norm_eps: queries and keys of this family's states have {EPS}")
        if config.count("linear_key_head_dim") != config.count("linear_value_head_dim"):
            raise config.error("linear_value_head_dim: keys are as long as values in this family")

    def shape(self, config: Fields) -> gw.Keys:
        size, heads = config.count("linear_key_head_dim"), config.count("linear_num_value_heads")
        return {
            **super().shape(config),
            **self.attending(config),
            "ssm.conv_kernel": gw.u32(config.count("linear_conv_kernel_dim", 4)),
            "ssm.state_size": gw.u32(size),
            "ssm.group_count": gw.u32(config.count("linear_num_key_heads")),
            "ssm.time_step_rank": gw.u32(heads),
            "ssm.inner_size": gw.u32(size * heads),
            **nextn.keys_of(config),
        }

    def attending(self, config: Fields) -> gw.Keys:
        """Which layers have attention: every so many-th, or those of a list."""
        blocks = config.count("num_hidden_layers")
        every = config.count("full_attention_interval", 4)
        if blocks > MOST_BLOCKS:
            raise config.error(f"num_hidden_layers is {blocks}: at most {MOST_BLOCKS} run")
        usual = [KINDS[(i + 1) % every > 0] for i in range(blocks)]
        kinds = config.kinds(KINDS, usual)
        found = {"full_attention_interval": gw.u32(every)}
        if kinds != usual:
            listed = [kind == KINDS[1] for kind in kinds]
            listed += [False] * (config.get(nextn.FURTHER) or 0)
            found["attention.recurrent_layers"] = gw.booleans(listed)
        return found

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        behind = {
            f"model.layers.{model.blocks + i}.": f"mtp.layers.{i}." for i in range(model.mtp_blocks)
        }
        found = {}
        for name, source in super().sources(config, nextn.whole(model)).items():
            layer = ".".join(source.name.split(".")[:3]) + "."
            place = source.name.replace(layer, behind.get(layer, layer))
            found[name] = self.stored(name, replace(source, name=place), model)
        return found | nextn.sources(model, NEXTN, added=1.0)

    def stored(self, name: str, source: Source, model: ModelConfig) -> Source:
        """The checkpoint's form of a GGUF tensor."""
        kind, dims = name.split(".", 2)[-1], source.dims
        if kind == "ssm_conv1d.weight":
            source = replace(source, exact=True, theirs=(dims[0], 1, dims[1]))
        elif kind == "ssm_a":
            source = replace(source, through=decay)
        elif name.endswith("_norm.weight") and kind != "ssm_norm.weight":
            source = replace(source, added=1.0)
        assert model.ssm
        return self.in_order(kind, source, model.ssm)

    def in_order(self, kind: str, source: Source, ssm: Ssm) -> Source:
        """With rows, or columns, in GGUF's order."""
        raise NotImplementedError


class Qwen3Next(DeltaNets, Qwen2Moe):
    """Of experts."""

    architectures = ("Qwen3NextForCausalLM",)
    about = "Qwen 3 Next"
    gguf = "qwen3next"
    modules: ClassVar = {
        **Qwen2Moe.modules,
        **DeltaNets.modules,
        "attn_qkv": f"{LINEAR}.in_proj_qkvz",
        "attn_gate": f"{LINEAR}.in_proj_qkvz",
        "ssm_ba": f"{LINEAR}.in_proj_ba",
    }
    required: ClassVar = DeltaNets.required

    def usual_words(self, config: Fields) -> Fields:
        usual = {"norm_topk_prob": True, **config.values}
        return super().usual_words(Fields(usual, config.place))

    def in_order(self, kind: str, source: Source, ssm: Ssm) -> Source:
        if kind not in ("attn_qkv.weight", "attn_gate.weight"):
            return source
        size, values = ssm.state, ssm.inner // ssm.groups
        step = 2 * (size + values)
        parts = {"q": (0, size), "k": (size, size), "v": (2 * size, values)}
        if kind == "attn_gate.weight":
            parts = {"z": (2 * size + values, values)}
        found = tuple(
            (group * step + first, group * step + first + count)
            for first, count in parts.values()
            for group in range(ssm.groups)
        )
        return replace(source, stretches=found, theirs=(ssm.groups * step, source.dims[1]))


class Qwen35(PlacedText, DeltaNets):
    """Dense; the checkpoint may be of a model that sees, too."""

    architectures = ("Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration")
    about = "Qwen 3.5, dense"
    gguf = "qwen35"
    modules: ClassVar = {
        **DeltaNets.modules,
        "attn_qkv": f"{LINEAR}.in_proj_qkv",
        "attn_gate": f"{LINEAR}.in_proj_z",
        "ssm_beta": f"{LINEAR}.in_proj_b",
        "ssm_alpha": f"{LINEAR}.in_proj_a",
    }

    def in_order(self, kind: str, source: Source, ssm: Ssm) -> Source:
        before = 2 * ssm.groups * ssm.state
        match kind:
            case "attn_qkv.weight" | "ssm_conv1d.weight":
                stretches = ((0, before), *in_turn(ssm, ssm.state, before))
            case "attn_gate.weight":
                stretches = tuple(in_turn(ssm, ssm.state))
            case "ssm_beta.weight" | "ssm_alpha.weight" | "ssm_dt.bias" | "ssm_a":
                stretches = tuple(in_turn(ssm, 1))
            case "ssm_out.weight":
                return replace(source, through=partial(columns_in_turn, ssm))
            case _:
                return source
        return replace(source, stretches=stretches)


def in_turn(ssm: Ssm, size: int, before: int = 0) -> Iterator[tuple[int, int]]:
    """The rows of each head of values, behind so many others: the first of every key, then the
    second of every key, and so on."""
    shared = ssm.rank // ssm.groups
    for number in range(ssm.rank):
        head = number % ssm.groups * shared + number // ssm.groups
        yield before + head * size, before + (head + 1) * size


def columns_in_turn(ssm: Ssm, rows: Floats) -> Floats:
    """Columns [rows, inner] in that order."""
    apart = rows.reshape(len(rows), ssm.groups, -1, ssm.state)
    return np.ascontiguousarray(apart.swapaxes(1, 2)).reshape(rows.shape)


class Qwen35Moe(Qwen35, Qwen2Moe):
    """Of experts, of which gate and up are one tensor."""

    architectures = ("Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration")
    about = "Qwen 3.5, of experts"
    gguf = "qwen35moe"
    modules: ClassVar = {**Qwen2Moe.modules, **Qwen35.modules}
    required: ClassVar = DeltaNets.required
    normed = ""  # always

    def shape(self, config: Fields) -> gw.Keys:
        width = {"intermediate_size": config.get("moe_intermediate_size")}  # which nothing has
        return super().shape(Fields(width | dict(config.values), config.place))

    def named(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return in_halves(super().named(tensors))


FAMILIES = (Qwen3Next(), Qwen35(), Qwen35Moe())
