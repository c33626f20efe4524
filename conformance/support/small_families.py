"""Small random models of the families beside LLaMA, as GGUF files and as checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import pytest

from conformance.support.small_models import Small
from reference.falcon import falcon
from reference.formats import FORMATS
from reference.op import Array
from reference.opt import UNUSED, opt
from reference.transformer import Weight

Tensors = tuple[dict[str, Weight], dict[str, Array]]


@dataclass(frozen=True, slots=True)
class SmallFalcon(Small):
    """A random Falcon, tied; attention has a norm of its own if `two_norms`."""

    tied: bool = True
    two_norms: bool = False
    architecture: str = "falcon"
    activation: str = "gelu_erf"

    def tensors(self) -> Tensors:
        made = Maker(self)
        made.matrix("token_embd", self.vocab, self.hidden)
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        for i in range(self.blocks):
            block = f"blk.{i}"
            made.norm(f"{block}.attn_norm")
            if self.two_norms:
                made.norm(f"{block}.attn_norm_2")
            made.matrix(f"{block}.attn_qkv", q + 2 * kv, self.hidden)
            made.matrix(f"{block}.attn_output", self.hidden, q)
            made.matrix(f"{block}.ffn_up", self.ffn, self.hidden)
            made.matrix(f"{block}.ffn_down", self.hidden, self.ffn)
        made.norm("output_norm")
        if not self.tied:
            made.matrix("output", self.vocab, self.hidden)
        return made.weights, made.norms

    def formula(self) -> Callable[..., Array]:
        return falcon


@dataclass(frozen=True, slots=True)
class SmallOPT(Small):
    """A random OPT, tied; `context` is how many positions it has learned."""

    tied: bool = True
    kv_heads: int = 4
    context: int = 40
    architecture: str = "opt"
    activation: str = "relu"

    def tensors(self) -> Tensors:
        made = Maker(self)
        made.matrix("token_embd", self.vocab, self.hidden)
        made.matrix("position_embd", self.context + UNUSED, self.hidden)
        width = self.heads * self.head_dim
        for i in range(self.blocks):
            block = f"blk.{i}"
            made.norm(f"{block}.attn_norm")
            for name in "qkv":
                made.matrix(f"{block}.attn_{name}", width, self.hidden, bias=True)
            made.matrix(f"{block}.attn_output", self.hidden, width, bias=True)
            made.norm(f"{block}.ffn_norm")
            made.matrix(f"{block}.ffn_up", self.ffn, self.hidden, bias=True)
            made.matrix(f"{block}.ffn_down", self.hidden, self.ffn, bias=True)
        made.norm("output_norm")
        return made.weights, made.norms

    def formula(self) -> Callable[..., Array]:
        return opt

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        """As PowerInfer writes them: the context counts the table's rows, and there is no eps."""
        writer.add_context_length(self.context + UNUSED)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.blocks)
        writer.add_feed_forward_length(self.ffn)
        writer.add_head_count(self.heads)


class Maker:
    """Tensors by name, drawn one after the other."""

    def __init__(self, small: Small) -> None:
        self.small, self.rng = small, np.random.default_rng(small.seed)
        self.weights: dict[str, Weight] = {}
        self.norms: dict[str, Array] = {}

    def matrix(self, name: str, rows: int, elements: int, bias: bool = False) -> None:
        rng, kind = self.rng, self.small.format
        values = rng.standard_normal((rows, elements), np.float32) * np.float32(elements**-0.5)
        self.weights[f"{name}.weight"] = Weight(FORMATS[kind].like(values, rng), kind)
        if bias:
            self.norms[f"{name}.bias"] = self.vector(rows, 0)

    def norm(self, name: str) -> None:
        hidden = self.small.hidden
        self.norms |= {f"{name}.weight": self.vector(hidden, 1)}
        self.norms |= {f"{name}.bias": self.vector(hidden, 0)}

    def vector(self, size: int, around: float) -> Array:
        return np.float32(around) + 0.1 * self.rng.standard_normal(size, np.float32)


Subject = SmallFalcon | SmallOPT
SUBJECTS: dict[str, Subject] = {
    "Falcon, one head of keys": SmallFalcon(kv_heads=1, ffn=100),
    "Falcon, groups and two norms": SmallFalcon(two_norms=True, kv_heads=2, seed=1),
    "Falcon, untied": SmallFalcon(kv_heads=4, tied=False, seed=2),
    "Falcon, F16": SmallFalcon(two_norms=True, format="F16", seed=3),
    "OPT": SmallOPT(ffn=100),
    "OPT, F16": SmallOPT(format="F16", seed=1),
}
QUANTISED = {f: (SmallFalcon(format=f), SmallOPT(format=f)) for f in ("Q8_0", "Q4_0")}
LENGTH = 19
each_subject = pytest.mark.parametrize("small", SUBJECTS.values(), ids=SUBJECTS)
Subject = SmallFalcon | SmallOPT
SUBJECTS: dict[str, Subject] = {
    "Falcon, one head of keys": SmallFalcon(kv_heads=1, ffn=100),
    "Falcon, groups and two norms": SmallFalcon(two_norms=True, kv_heads=2, seed=1),
    "Falcon, untied": SmallFalcon(kv_heads=4, tied=False, seed=2),
    "Falcon, F16": SmallFalcon(two_norms=True, format="F16", seed=3),
    "OPT": SmallOPT(ffn=100),
    "OPT, F16": SmallOPT(format="F16", seed=1),
}
QUANTISED = {f: (SmallFalcon(format=f), SmallOPT(format=f)) for f in ("Q8_0", "Q4_0")}
LENGTH = 19
each_subject = pytest.mark.parametrize("small", SUBJECTS.values(), ids=SUBJECTS)


def prompt(small: Subject) -> list[int]:
    return np.random.default_rng(small.seed).integers(0, small.vocab, LENGTH).tolist()


def exact(small: Subject, tokens: list[int], **how: Any) -> Array:
    weights, norms = small.tensors()
    return small.formula()(np.array(tokens, np.int32), weights, norms, small.shape(), **how)


RANK = 8


def f32(values: Array) -> Weight:
    return Weight(np.ascontiguousarray(values, np.float32).view(np.uint8), "F32")


def sparse(small: Subject, path: Path) -> Path:
    """The model with its magic; predictors are random."""
    weights, norms = small.tensors()
    rng = np.random.default_rng(small.seed)
    for i in range(small.blocks):
        block = f"blk.{i}"
        down = weights.pop(f"{block}.ffn_down.weight").data.view(np.float32)
        weights[f"{block}.ffn_down_t.weight"] = f32(down.T)
        weights[f"{block}.fc1.weight"] = f32(rng.standard_normal((RANK, small.hidden)))
        weights[f"{block}.fc2.weight"] = f32(rng.standard_normal((small.ffn, RANK)))
        if f"{block}.ffn_down.bias" in norms:
            norms[f"{block}.ffn_down_t.bias"] = norms.pop(f"{block}.ffn_down.bias")
    with patch.object(type(small), "tensors", lambda _: (weights, norms)):
        small.write(path)
    path.write_bytes(b"PWRI" + path.read_bytes()[4:])
    return path
