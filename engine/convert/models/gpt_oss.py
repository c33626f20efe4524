"""gpt-oss. Checkpoints interleave experts' gates and ups: as floats, input dimension first, or as
MXFP4, which is kept."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from engine.config import ModelConfig
from engine.convert import windows
from engine.convert.checkpoint import Tensor
from engine.convert.family import Family, Source
from engine.convert.fields import Fields
from engine.convert.json_files import CheckpointError
from engine.convert.models.experts import Mixture, turned
from engine.convert.models.qwen import Qwen2
from engine.gguf import writer as gw
from engine.models.experts import SCALARS
from engine.torch_file import StoredTensor
from reference.formats import FORMATS
from reference.formats.format import Floats

METHOD = "mxfp4"
GATE_UP, DOWN = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"


@dataclass(frozen=True, slots=True)
class Microscaled:
    """Values that are bytes [..., rows, blocks, 16] of two codes each, the first in the low bits,
    and an exponent for each block, [..., rows, blocks]."""

    codes: StoredTensor
    exponents: StoredTensor

    @property
    def file(self) -> Path:
        return self.codes.file

    @property
    def dtype(self) -> str:
        return "F32"

    @property
    def dims(self) -> tuple[int, ...]:
        *before, blocks, size = self.codes.dims
        return (*before, 2 * blocks * size)

    def rows(self, first: int, last: int) -> Floats:
        """As GGUF's format has them: the exponent first, and the codes of 16 elements low, those
        of the next 16 high."""
        parts = (part.rows(first, last) for part in (self.codes, self.exponents))
        codes, exponents = (part.astype(np.uint8) for part in parts)
        each = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], 32)
        packed = each[..., :16] | each[..., 16:] << 4
        blocks = np.concatenate([exponents[..., None], packed], axis=-1)
        data = blocks.reshape(*blocks.shape[:-2], -1)
        flat = FORMATS["MXFP4"].dequantise(data.reshape(-1, data.shape[-1]))
        return flat.reshape(*data.shape[:-1], -1)


def in_turn(tensor: StoredTensor, axis: int) -> tuple[StoredTensor, StoredTensor]:
    """Even indices of an axis, then odd ones."""
    size = {"F32": 4, "F16": 2, "BF16": 2, "U8": 1}.get(tensor.dtype, 0)
    dims, strides = list(tensor.dims), list(tensor.strides)
    dims[axis] //= 2
    strides[axis] *= 2
    even = replace(tensor, dims=tuple(dims), strides=tuple(strides))
    return even, replace(even, begin=tensor.begin + tensor.strides[axis] * size)


class GptOss(Mixture, Qwen2):
    """LLaMA with experts, biases and sinks, and windows in every other layer."""

    architectures = ("GptOssForCausalLM",)
    about = "gpt-oss"
    gguf = "gpt-oss"
    modules: ClassVar = {
        **Qwen2.modules,
        "post_attention_norm": "model.layers.{}.post_attention_layernorm",
        "attn_sinks": "model.layers.{}.self_attn.sinks",
        "ffn_gate_inp": "model.layers.{}.mlp.router",
        "ffn_gate_exps": "model.layers.{}.mlp.experts.gate_proj",
        "ffn_up_exps": "model.layers.{}.mlp.experts.up_proj",
        "ffn_down_exps": "model.layers.{}.mlp.experts.down_proj",
    }
    required: ClassVar[tuple[str, ...]] = ("rms_norm_eps", "head_dim", "rope_theta")

    def check(self, config: Fields) -> None:
        method = config.part("quantization_config").get("quant_method")
        kept = {"quantization_config": None} if method == METHOD else {}
        super().check(Fields({**config.values, **kept}, config.place))
        if not config.flag("attention_bias", True):
            raise config.error("attention_bias is false; this family has biases")
        for name, value in SCALARS["swiglu_oai"].items():
            if (found := config.real(f"swiglu_{name}", value)) != value:
                raise config.error(f"swiglu_{name} is {found:g}; this family has {value:g}")

    def shape(self, config: Fields) -> gw.Keys:
        width = gw.u32(config.count("intermediate_size"))
        return {
            **super().shape(config),
            "expert_feed_forward_length": width,
            **windows.by_layer(config, self.gguf),
        }

    def sources(self, config: Fields, model: ModelConfig) -> dict[str, Source]:
        scaled = config.part("quantization_config").get("quant_method") == METHOD
        return {
            name: replace(
                source,
                exact=name.endswith("_exps.bias"),
                format="MXFP4" if scaled and name.endswith("_exps.weight") else "",
            )
            for name, source in Family.sources(self, config, model).items()
        }

    def named(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, tensor in super().named(tensors).items():
            if name.endswith(".sinks"):
                found[f"{name}.weight"] = tensor
            elif GATE_UP in name or DOWN in name:
                found |= _of_experts(name, tensor, tensors)
            else:
                found[name] = tensor
        return found


def _of_experts(name: str, tensor: Tensor, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Experts' tensors in GGUF's names from a tensor of the checkpoint; scales go with blocks."""
    module, _, kind = name.rpartition("_proj")
    layer, _, both = module.rpartition(".")
    names = [f"{layer}.{part}_proj" for part in both.split("_")]
    wanted = {"": 3, "_bias": 2, "_blocks": 4, "_scales": 3}.get(kind)
    if not isinstance(tensor, StoredTensor) or len(tensor.dims) != wanted:
        found = f"{tensor.file}: tensor {name} is {list(tensor.dims)}"
        raise CheckpointError(f"{found}, which no experts are")

    def parts(tensor: StoredTensor) -> tuple[StoredTensor, ...]:
        return in_turn(tensor, 1) if len(names) > 1 else (tensor,)

    if kind == "_bias":
        return {f"{n}.bias": part for n, part in zip(names, parts(tensor), strict=True)}
    if kind == "":
        each = parts(turned(tensor))
        return {f"{n}.weight": part for n, part in zip(names, each, strict=True)}
    if kind == "_scales":
        return {}
    scales = tensors.get(f"{module}_proj_scales")
    if not isinstance(scales, StoredTensor) or scales.dims != tensor.dims[:3]:
        raise CheckpointError(f"{tensor.file}: tensor {name} has no scales that fit its blocks")
    if {tensor.dtype, scales.dtype} != {"U8"} or tensor.dims[3] != 16:
        raise CheckpointError(f"{tensor.file}: tensor {name} has no blocks of 16 bytes")
    pairs = zip(parts(tensor), parts(scales), strict=True)
    return {f"{n}.weight": Microscaled(*pair) for n, pair in zip(names, pairs, strict=True)}


FAMILIES: tuple[Family, ...] = (GptOss(),)
