"""Layers that foretell a token, which GGUF has as a block behind the others (models/further.py)."""

from collections.abc import Mapping
from dataclasses import replace

from engine.config import ModelConfig
from engine.convert.checkpoint import Tensor
from engine.convert.family import Source
from engine.convert.fields import Fields
from engine.gguf import writer as gw
from engine.models import further

FURTHER = "num_nextn_predict_layers"  # how many there are, which is DeepSeek's word


def told(config: Fields, tensors: Mapping[str, Tensor], joining: str, count: object) -> Fields:
    """config.json with so many, or with none where the checkpoint lacks the first one's `joining`
    matrix."""
    count = count if f"{joining}.weight" in tensors else 0
    return Fields({**config.values, FURTHER: count}, config.place)


def notes(config: Fields) -> list[str]:
    """That there are more than the one which the file has."""
    several = (config.get(FURTHER) or 0) > 1
    line = "of the layers that foretell further tokens all but the first are left out"
    return [line] * several


def keys_of(config: Fields) -> gw.Keys:
    """That there is one more block, and that it foretells."""
    if not config.get(FURTHER):
        return {}
    blocks = config.count("num_hidden_layers") + min(1, config.count(FURTHER))
    return {"block_count": gw.u32(blocks), "nextn_predict_layers": gw.u32(1)}


def whole(model: ModelConfig) -> ModelConfig:
    """The model as if that block were one of the others, whose tensors it has."""
    return replace(model, blocks=model.blocks + model.further, further=0)


def sources(
    model: ModelConfig, modules: Mapping[str, str], added: float = 0.0
) -> dict[str, Source]:
    """Of what the block has beside the others, `modules` of the checkpoint by what GGUF calls it;
    norms have so much `added`."""
    known, found = further.expected_tensors(model) | further.optional_tensors(model), {}
    for name, module in modules.items() if model.further else ():
        own = f"blk.{model.blocks}.nextn.{name}.weight"
        optional = f"nextn.{name}.weight" not in further.joining(model)
        more = added if name.endswith("norm") else 0.0
        place = module.format(model.blocks)
        found[own] = Source(f"{place}.weight", known[own], optional=optional, added=more)
    return found
