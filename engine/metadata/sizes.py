"""Sizes that differ between blocks, as in Gemma 4."""

from collections.abc import Container
from dataclasses import dataclass

from engine.errors import ModelError
from engine.metadata.keys import Keys


@dataclass(frozen=True, slots=True)
class OfBlock:
    """A block's own sizes: KV heads, the width of its heads and of its network, and the index of
    the block whose keys and values it reads: its own or an earlier one."""

    kv_heads: int
    head_dim: int
    ffn: int
    kept: int


def sizes_of(
    keys: Keys, blocks: int, heads: int, head_dim: int, windowed: Container[int]
) -> tuple[OfBlock, ...]:
    """The sizes of each block. Blocks with a window have heads of another width, and the last
    blocks share the keys and values of the last block of their kind that has its own."""
    of_windows = keys.count("attention.key_length_swa")
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if keys.count(key, of_windows) != of_windows:
            raise ModelError(f"{keys.full(key)} differs from attention.key_length_swa")
    kv_heads = keys.counts("attention.head_count_kv", blocks)
    if bad := [count for count in kv_heads if heads % count]:
        raise ModelError(f"attention.head_count {heads} is no multiple of head_count_kv {bad[0]}")
    ffn = keys.counts("feed_forward_length", blocks)
    shared = keys.count("attention.shared_kv_layers", 0, least=0)
    own = range(max(0, blocks - shared))
    found = []
    for i in range(blocks):
        alike = [j for j in own if (j in windowed) == (i in windowed) and j <= i]
        if not alike:
            raise ModelError(
                f"{keys.full('attention.shared_kv_layers')} is {shared}: block {i} has no keys of"
                " its own, and none before it of its kind has"
            )
        width = of_windows if i in windowed else head_dim
        found.append(OfBlock(kv_heads[i], width, ffn[i], alike[-1]))
    return tuple(found)
