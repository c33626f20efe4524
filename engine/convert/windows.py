"""Windows of attention, of every layer or of some, as config.json tells them and as GGUF does."""

from engine.convert.fields import Fields
from engine.gguf import writer as gw
from engine.metadata.architectures import ARCHITECTURES
from engine.metadata.mixers import MOST_BLOCKS

KINDS = "full_attention", "sliding_attention"


def of_all(config: Fields, usual: int | None = None) -> gw.Keys:
    """The key of a window that all layers have, where there is one: null is none, while a config
    without the field means transformers' default, `usual`."""
    if config.values.get("sliding_window", usual) is None:
        return {}
    return {"attention.sliding_window": gw.u32(config.count("sliding_window", usual))}


def notes(config: Fields, gguf: str, usual: int | None = None) -> list[str]:
    """What the file's owner should know of such a window."""
    if not of_all(config, usual):
        return []
    window = config.count("sliding_window", usual)
    if window >= config.count("max_position_embeddings", 2**31 - 1):
        return []
    return [f"attention reaches {window} tokens back: llama.cpp, of {gguf}, attends to all"]


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
