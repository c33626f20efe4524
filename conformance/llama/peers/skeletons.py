"""Models of every depth that are all names, two rows a matrix: which format does each get?"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import gguf
import numpy as np

from conformance.support.models.small_models import written
from engine.quantise.mixes import MIXES
from reference.op import Array

HEADS = 8
QKV, NETWORK = ("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up", "ffn_down")
ROWS = 2  # llama.cpp takes a single row for a vector


@dataclass(frozen=True, slots=True)
class Skeleton:
    """`grouped` heads share one of K and V, whose rows are one tensor with those of Q where they
    are `fused`; all rows are equally long. Beside `experts` is one that all tokens meet."""

    blocks: int
    grouped: int = 1
    tied: bool = False
    elements: int = 256
    experts: int = 0
    fused: bool = False
    architecture: str = "llama"

    @property
    def roles(self) -> tuple[str, ...]:
        """Of a block's matrices."""
        attention = (*(("attn_qkv",) if self.fused else QKV), "attn_output")
        kinds = ("exps", "shexp") if self.experts else ()
        return attention + (tuple(f"{n}_{k}" for k in kinds for n in NETWORK) or NETWORK)

    @property
    def mixes(self) -> tuple[str, ...]:
        """Those that both have: of MXFP4, llama.cpp makes something else of a model without
        experts (mixes.py)."""
        return tuple(name for name in MIXES if name != "MXFP4" or self.experts)

    def dims(self, name: str) -> tuple[int, ...]:
        """Of a matrix, or of an expert each."""
        return (self.experts,) * name.endswith("_exps.weight") + (ROWS, self.elements)

    @property
    def names(self) -> list[str]:
        """Of the matrices."""
        ends = ["token_embd"] + ([] if self.tied else ["output"])
        inner = [f"blk.{i}.{role}" for i in range(self.blocks) for role in self.roles]
        return [f"{name}.weight" for name in ends + inner]

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_context_length(64)
        writer.add_embedding_length(self.elements)
        writer.add_block_count(self.blocks)
        writer.add_feed_forward_length(self.elements)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(HEADS // self.grouped)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_layer_norm_eps(1e-5)
        writer.add_rope_dimension_count(self.elements // HEADS)
        writer.add_vocab_size(ROWS)
        if self.experts:
            writer.add_expert_count(self.experts)
            writer.add_expert_used_count(2)
        rng = np.random.default_rng(1)
        for name in self.names:
            writer.add_tensor(name, rng.random(self.dims(name), np.float32))
        writer.add_tensor("output_norm.weight", np.ones(self.elements, np.float32))
        return written(writer, path)

    def importance(self) -> dict[str, Array]:
        """As of columns that all matter alike, each expert's."""
        each = {name: math.prod(self.dims(name)) // ROWS for name in self.names}
        return {name: np.ones(columns, np.float32) for name, columns in each.items()}


SKELETONS = {
    "shallow": Skeleton(5),
    "tied": Skeleton(12, 4, tied=True),
    "grouped": Skeleton(32, 4),
    "ungrouped": Skeleton(32),
    "one_kv_head": Skeleton(17, 8),
    "65B": Skeleton(80),
    "70B": Skeleton(80, 8),
    "another_70B": Skeleton(80, 4),
    "rows_of_288": Skeleton(16, 4, elements=288),
    "tied_rows_of_288": Skeleton(8, tied=True, elements=288),
    "rows_of_40": Skeleton(8, elements=40),
    "fused": Skeleton(17, 2, fused=True),
    "falcon": Skeleton(17, 2, fused=True, architecture="falcon"),
    "tied_falcon": Skeleton(33, 8, fused=True, tied=True, architecture="falcon"),
    "qwen_of_80": Skeleton(80, architecture="qwen2"),
    "another_of_80": Skeleton(80, 8, architecture="starcoder2"),
    "four_experts": Skeleton(17, 4, experts=4),
    "five_experts": Skeleton(9, tied=True, experts=5),
    "eight_experts": Skeleton(17, 4, experts=8),
    "eight_experts_rows_of_288": Skeleton(9, elements=288, experts=8),
    "eight_experts_70B": Skeleton(80, 8, experts=8),
}

Formats = dict[str, str]


def formats_by_role(skeleton: Skeleton, formats: Mapping[str, str]) -> Formats:
    """Formats by tensor, as the golden has them: of each role, from the first block on."""
    found = {}
    for role in ("token_embd", "output"):
        if f"{role}.weight" in formats:
            found[role] = formats[f"{role}.weight"]
    for role in skeleton.roles:
        each = [formats[f"blk.{i}.{role}.weight"] for i in range(skeleton.blocks)]
        found[role] = ", ".join(f"{len(list(run))} {name}" for name, run in groupby(each))
    return found
