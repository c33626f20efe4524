"""Attention windows, of all layers or some, in config.json's and GGUF's terms."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.convert.fields import Fields
from engine.gguf import writer as gw
from engine.metadata.architectures import ARCHITECTURES
from engine.metadata.mixers import MOST_BLOCKS

KINDS = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Switched:
    """Windows of a family that applies them only where use_sliding_window is true: the default
    number of tokens, and a predicate, of the layer's index and max_window_layers, for configs
    without layer_types."""

    usual: int | None
    has: Callable[[int, int], bool]


# By GGUF's name of the family, as transformers has them.
SWITCHED: Mapping[str, Switched] = {
    "qwen2": Switched(4096, lambda i, most: i >= most),
    "qwen3": Switched(4096, lambda i, most: i >= most),
    "qwen2moe": Switched(4096, lambda i, most: i % 2 == 0 and i < most),
    "qwen3moe": Switched(4096, lambda _i, _most: True),
    "smollm3": Switched(None, lambda i, _most: (i + 1) % 4 == 0),
}


def of_all(config: Fields, usual: int | None = None) -> gw.Keys:
    """The key of a window common to all layers, if there is one: null is none, while a config
    without the field means transformers' default, `usual`."""
    if config.values.get("sliding_window", usual) is None:
        return {}
    return {"attention.sliding_window": gw.u32(config.count("sliding_window", usual))}


def notes(config: Fields, gguf: str, usual: int | None = None) -> list[str]:
    """Notes on windows that llama.cpp does not read."""
    if not of_all(config, usual):
        return []
    window = config.count("sliding_window", usual)
    if window >= config.count("max_position_embeddings", 2**31 - 1):
        return []
    return [f"attention reaches {window} tokens back: llama.cpp, of {gguf}, attends to all"]


def where_switched(config: Fields, gguf: str) -> gw.Keys:
    """Keys of the windows that use_sliding_window enables."""
    if not config.flag("use_sliding_window", False):
        return {}
    if gguf not in SWITCHED:
        raise config.error("use_sliding_window: this family has no windows of some layers")
    own, blocks = SWITCHED[gguf], config.count("num_hidden_layers")
    if not (found := of_all(config, own.usual)):
        return {}
    most = config.get("max_window_layers", 28)
    if not isinstance(most, int) or most < 0:
        raise config.error(f"max_window_layers must be at least 0, got {most!r}")
    if blocks > MOST_BLOCKS:
        raise config.error(f"num_hidden_layers is {blocks}: at most {MOST_BLOCKS} run")
    kinds = config.kinds(KINDS, [KINDS[own.has(i, most)] for i in range(blocks)])
    if KINDS[True] not in kinds:
        return {}
    windowed = [kind == KINDS[True] for kind in kinds]
    return {**found, "attention.sliding_window_pattern": gw.booleans(windowed)}


def notes_where_switched(config: Fields, gguf: str) -> list[str]:
    """Notes on those."""
    there = where_switched(config, gguf)
    return notes(config, gguf, SWITCHED[gguf].usual) if there else []


def by_layer(config: Fields, gguf: str) -> gw.Keys:
    """The keys of layers that have a window or have none."""
    blocks, usual = config.count("num_hidden_layers"), ARCHITECTURES[gguf].windows
    every = config.count("sliding_window_pattern", usual)
    if blocks > MOST_BLOCKS:
        raise config.error(f"num_hidden_layers is {blocks}: at most {MOST_BLOCKS} run")
    kinds = config.kinds(KINDS, [KINDS[(i + 1) % every > 0] for i in range(blocks)])
    found = {"attention.sliding_window": gw.u32(config.count("sliding_window", 4096))}
    if kinds != [KINDS[(i + 1) % usual > 0] for i in range(blocks)]:
        windowed = [kind == KINDS[True] for kind in kinds]
        found["attention.sliding_window_pattern"] = gw.booleans(windowed)
    return found
