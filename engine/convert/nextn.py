"""Layers that foretell tokens, which GGUF has as blocks behind the others (models/further.py)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product, takewhile

from engine.config import ModelConfig
from engine.convert.checkpoint import Tensor
from engine.convert.family import Source
from engine.convert.fields import Fields
from engine.gguf import writer as gw
from engine.models import further

FURTHER = "num_nextn_predict_layers"  # how many there are, which is DeepSeek's word


def counted(config: Fields, tensors: Mapping[str, Tensor], joining: Sequence[str]) -> Fields:
    """config.json with as many as the checkpoint has, by their `joining` matrices, which end with
    the first that is missing."""
    count = len(list(takewhile(lambda name: f"{name}.weight" in tensors, joining)))
    return Fields({**config.values, FURTHER: count}, config.place)


def keys_of(config: Fields) -> gw.Keys:
    """That there are so many more blocks, and that they foretell."""
    if not (count := config.get(FURTHER)):
        return {}
    blocks = config.count("num_hidden_layers") + count
    return {"block_count": gw.u32(blocks), "nextn_predict_layers": gw.u32(count)}


def whole(model: ModelConfig) -> ModelConfig:
    """The model as if those blocks were some of the others, whose tensors they have."""
    return replace(model, blocks=model.blocks + model.further, further=0)


def sources(
    model: ModelConfig, modules: Mapping[str, str], added: float = 0.0
) -> dict[str, Source]:
    """Of what the blocks have beside the others, `modules` of the checkpoint by what GGUF calls it,
    of all in common where a name has no layer; norms have so much `added`."""
    known, found = further.expected_tensors(model) | further.optional_tensors(model), {}
    for i, (name, module) in product(range(model.further), modules.items()):
        own = f"blk.{model.blocks + i}.nextn.{name}.weight"
        optional = f"nextn.{name}.weight" not in further.joining(model)
        more = added if name.endswith("norm") else 0.0
        if i == 0 or "{}" in module:
            place = module.format(model.blocks + i)
            found[own] = Source(f"{place}.weight", known[own], optional=optional, added=more)
    return found
