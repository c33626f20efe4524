"""Small random models of the families beside LLaMA, as GGUF files and as checkpoints."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import pytest

from conformance.support.small_models import Listed, Small
from reference.falcon import falcon
from reference.op import Array
from reference.opt import UNUSED, opt
from reference.transformer import Weight


def norm(name: str, size: int) -> tuple[Listed, Listed]:
    return (f"{name}.weight", size), (f"{name}.bias", size)


def biased(name: str, rows: int, elements: int) -> tuple[Listed, Listed]:
    return (f"{name}.weight", rows, elements), (f"{name}.bias", rows)


@dataclass(frozen=True, slots=True)
class SmallFalcon(Small):
    """A random Falcon, tied; attention has a norm of its own if `two_norms`."""

    tied: bool = True
    two_norms: bool = False
    architecture: str = "falcon"
    activation: str = "gelu_erf"

    def listed(self) -> Iterator[Listed]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "token_embd.weight", self.vocab, self.hidden
        for i in range(self.blocks):
            yield from norm(f"blk.{i}.attn_norm", self.hidden)
            if self.two_norms:
                yield from norm(f"blk.{i}.attn_norm_2", self.hidden)
            yield f"blk.{i}.attn_qkv.weight", q + 2 * kv, self.hidden
            yield f"blk.{i}.attn_output.weight", self.hidden, q
            yield f"blk.{i}.ffn_up.weight", self.ffn, self.hidden
            yield f"blk.{i}.ffn_down.weight", self.hidden, self.ffn
        yield from norm("output_norm", self.hidden)
        if not self.tied:
            yield "output.weight", self.vocab, self.hidden

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

    def listed(self) -> Iterator[Listed]:
        width = self.heads * self.head_dim
        yield "token_embd.weight", self.vocab, self.hidden
        yield "position_embd.weight", self.context + UNUSED, self.hidden
        for i in range(self.blocks):
            yield from norm(f"blk.{i}.attn_norm", self.hidden)
            for name in "qkv":
                yield from biased(f"blk.{i}.attn_{name}", width, self.hidden)
            yield from biased(f"blk.{i}.attn_output", self.hidden, width)
            yield from norm(f"blk.{i}.ffn_norm", self.hidden)
            yield from biased(f"blk.{i}.ffn_up", self.ffn, self.hidden)
            yield from biased(f"blk.{i}.ffn_down", self.hidden, self.ffn)
        yield from norm("output_norm", self.hidden)

    def formula(self) -> Callable[..., Array]:
        return opt

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        """As PowerInfer writes them: the context counts the table's rows, and there is no eps."""
        writer.add_context_length(self.context + UNUSED)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.blocks)
        writer.add_feed_forward_length(self.ffn)
        writer.add_head_count(self.heads)


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
