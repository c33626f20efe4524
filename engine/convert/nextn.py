"""Multi-token prediction (NextN) layers, which GGUF stores as blocks after the others
(models/mtp.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product, takewhile

from engine.config import ModelConfig
from engine.convert.checkpoint import Tensor
from engine.convert.family import Source
from engine.convert.fields import Fields
from engine.gguf import writer as gw
from engine.models import mtp

FURTHER = "num_nextn_predict_layers"  # their number, in DeepSeek's config


def counted(config: Fields, tensors: Mapping[str, Tensor], joining: Sequence[str]) -> Fields:
    """config.json with the number of such layers in the checkpoint, counted by their `joining`
    matrices up to the first missing one."""
    count = len(list(takewhile(lambda name: f"{name}.weight" in tensors, joining)))
    return Fields({**config.values, FURTHER: count}, config.place)


def keys_of(config: Fields) -> gw.Keys:
    """Keys for the number of blocks, these included, and how many they are."""
    if not (count := config.get(FURTHER)):
        return {}
    blocks = config.count("num_hidden_layers") + count
    return {"block_count": gw.u32(blocks), "nextn_predict_layers": gw.u32(count)}


def whole(model: ModelConfig) -> ModelConfig:
    """The model as if those blocks were among the others, whose tensors they have."""
    return replace(model, blocks=model.blocks + model.mtp_blocks, mtp_blocks=0)


def sources(
    model: ModelConfig, modules: Mapping[str, str], added: float = 0.0
) -> dict[str, Source]:
    """Sources of the blocks' further tensors: `modules` of the checkpoint by GGUF's names, shared
    by all where a name has no layer; norms have so much `added`."""
    known, found = mtp.expected_tensors(model) | mtp.optional_tensors(model), {}
    for i, (name, module) in product(range(model.mtp_blocks), modules.items()):
        own = f"blk.{model.blocks + i}.nextn.{name}.weight"
        optional = f"nextn.{name}.weight" not in mtp.joining(model)
        more = added if name.endswith("norm") else 0.0
        if i == 0 or "{}" in module:
            place = module.format(model.blocks + i)
            found[own] = Source(f"{place}.weight", known[own], optional=optional, added=more)
    return found
