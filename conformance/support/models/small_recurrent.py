"""Small random models with recurrent state, as GGUF files."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import gguf
import numpy as np

from conformance.support.models.small_families import GRANITE, scales_of_granite
from conformance.support.models.small_models import Listed, Small, Tensors
from reference.models.lfm2 import lfm2
from reference.models.mamba import mamba
from reference.models.mixture import Mixture
from reference.models.qwen3next import qwen3next
from reference.models.transformer import Shape, transformer
from reference.op import Array


@dataclass(frozen=True, slots=True)
class SmallMamba(Small):
    """A random Mamba, or Mamba 2 with heads of `head_dim` by `architecture`."""

    tied: bool = True
    taps: int = 4
    state: int = 16
    rank: int = 32
    groups: int = 1
    expand: int = 2
    architecture: str = "mamba"

    @property
    def inner(self) -> int:
        return self.expand * self.hidden

    def apart(self) -> dict[str, tuple[int, int]]:
        """Matrices that are not packed, generated as vectors."""
        if self.architecture == "mamba":
            return {"ssm_conv1d.weight": (self.inner, self.taps), "ssm_a": (self.inner, self.state)}
        heads = self.inner // self.head_dim
        return {
            "ssm_conv1d.weight": (self.inner + 2 * self.groups * self.state, self.taps),
            "ssm_norm.weight": (self.groups, self.inner // self.groups),
            **dict.fromkeys(("ssm_a", "ssm_d"), (heads, 1)),
        }

    def listed(self) -> Iterator[Listed]:
        inner, apart = self.inner, self.apart()
        yield "token_embd.weight", self.vocab, self.hidden
        yield "output_norm.weight", self.hidden
        for i in range(self.blocks):
            yield f"blk.{i}.attn_norm.weight", self.hidden
            yield from ((f"blk.{i}.{name}", rows * size) for name, (rows, size) in apart.items())
            yield f"blk.{i}.ssm_conv1d.bias", apart["ssm_conv1d.weight"][0]
            if self.architecture == "mamba":
                yield f"blk.{i}.ssm_in.weight", 2 * inner, self.hidden
                yield f"blk.{i}.ssm_x.weight", self.rank + 2 * self.state, inner
                yield f"blk.{i}.ssm_dt.weight", inner, self.rank
                yield f"blk.{i}.ssm_dt.bias", inner
                yield f"blk.{i}.ssm_d", inner
            else:
                heads = apart["ssm_a"][0]
                rows = inner + apart["ssm_conv1d.weight"][0] + heads
                yield f"blk.{i}.ssm_in.weight", rows, self.hidden
                yield f"blk.{i}.ssm_dt.bias", heads
            yield f"blk.{i}.ssm_out.weight", self.hidden, inner
        if not self.tied:
            yield "output.weight", self.vocab, self.hidden

    def tensors(self) -> Tensors:
        """States decay, some fast and some slowly; convolutions have a magnitude of about 1."""
        weights, norms = Small.tensors(self)
        for name, vector in norms.items():
            kind = name.partition("blk.")[2].partition(".")[2]
            if kind in self.apart():
                vector = vector.reshape(self.apart()[kind])
            if kind == "ssm_a":
                vector = -np.exp(20 * vector)
            norms[name] = 5 * vector if kind == "ssm_conv1d.weight" else vector
        return weights, norms

    def formula(self) -> Callable[..., Array]:
        return mamba

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.blocks)
        writer.add_feed_forward_length(0)
        writer.add_head_count(0)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_ssm_conv_kernel(self.taps)
        writer.add_ssm_inner_size(self.inner)
        writer.add_ssm_state_size(self.state)
        if self.architecture == "mamba":
            writer.add_ssm_time_step_rank(self.rank)
        else:
            writer.add_ssm_time_step_rank(self.inner // self.head_dim)
            writer.add_ssm_group_count(self.groups)


@dataclass(frozen=True, slots=True)
class SmallGraniteHybrid(SmallMamba):
    """A random Granite 4: the `attending` blocks attend, without RoPE, the others are Mamba 2's.
    With `experts` networks are mixtures; `shared` is the width of a shared one."""

    blocks: int = 3
    attending: tuple[int, ...] = (1,)
    experts: int = 0
    used: int = 3
    shared: int = 0
    architecture: str = "granitehybrid"

    def listed(self) -> Iterator[Listed]:
        def kept(name: str) -> bool:
            if not name.startswith("blk."):
                return True
            _, block, part, *_ = name.split(".")
            others = "ssm_" if int(block) in self.attending else "attn_"
            dense = part.startswith("ffn_") and part != "ffn_norm" and self.experts
            return part == "attn_norm" or not (part.startswith(others) or dense)

        found = {name: dims for name, *dims in (*SmallMamba.listed(self), *Small.listed(self))}
        yield from ((name, *dims) for name, dims in found.items() if kept(name))
        for block in (f"blk.{i}" for i in range(self.blocks if self.experts else 0)):
            yield f"{block}.ffn_gate_inp.weight", self.experts, self.hidden
            for kind, width, own in (
                ("exps", self.ffn, (self.experts,)),
                ("shexp", self.shared, ()),
            ):
                for name in ("gate", "up", "down") if width else ():
                    dims = (self.hidden, width) if name == "down" else (width, self.hidden)
                    yield f"{block}.ffn_{name}_{kind}.weight", *own, *dims

    def shape(self) -> Shape:
        own = Mixture(self.experts, self.used) if self.experts else None
        return replace(Small.shape(self), scales=GRANITE, no_rope=1, mixture=own)

    def formula(self) -> Callable[..., Array]:
        return transformer

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        SmallMamba._sizes(replace(self, ffn=0), writer)
        writer.add_feed_forward_length(self.ffn)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(
            [self.kv_heads * (i in self.attending) for i in range(self.blocks)]
        )
        writer.add_rope_dimension_count(self.head_dim)
        writer.add_rope_scaling_finetuned(False)
        scales_of_granite(writer)
        if self.experts:
            writer.add_expert_count(self.experts)
            writer.add_expert_used_count(self.used)
            writer.add_expert_shared_feed_forward_length(self.shared)


@dataclass(frozen=True, slots=True)
class SmallLfm2(Small):
    """A random LFM 2, with attention in the `attending` blocks and convolutions in the others."""

    blocks: int = 3
    tied: bool = True
    taps: int = 3
    attending: tuple[int, ...] = (1,)
    architecture: str = "lfm2"

    def apart(self) -> dict[str, tuple[int, int]]:
        """Matrices that are not packed, generated as vectors."""
        return {"shortconv.conv.weight": (self.hidden, self.taps)}

    def listed(self) -> Iterator[Listed]:
        for name, *dims in Small.listed(self):
            _, block, part, *_ = [*name.split("."), "", ""]
            if name == "output_norm.weight":
                yield "token_embd_norm.weight", *dims
            elif (
                not part.startswith("attn_") or part == "attn_norm" or int(block) in self.attending
            ):
                yield name, *dims
        for i in range(self.blocks):
            if i in self.attending:
                yield from ((f"blk.{i}.attn_{n}_norm.weight", self.head_dim) for n in "qk")
            else:
                yield f"blk.{i}.shortconv.conv.weight", self.hidden * self.taps
                yield f"blk.{i}.shortconv.in_proj.weight", 3 * self.hidden, self.hidden
                yield f"blk.{i}.shortconv.out_proj.weight", self.hidden, self.hidden

    def tensors(self) -> Tensors:
        """Convolutions have a magnitude of about 1."""
        weights, norms = Small.tensors(self)
        for name in (name for name in norms if name.endswith("shortconv.conv.weight")):
            norms[name] = 5 * norms[name].reshape(self.hidden, self.taps)
        return weights, norms

    def formula(self) -> Callable[..., Array]:
        return lfm2

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.blocks)
        writer.add_feed_forward_length(self.ffn)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(
            [self.kv_heads * (i in self.attending) for i in range(self.blocks)]
        )
        writer.add_rope_dimension_count(self.head_dim)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_shortconv_l_cache(self.taps)


@dataclass(frozen=True, slots=True)
class SmallLfm2Moe(SmallLfm2):
    """A random LFM 2 of experts, but for the first `leading` blocks."""

    experts: int = 6
    used: int = 3
    width: int = 32
    leading: int = 1
    architecture: str = "lfm2moe"

    def listed(self) -> Iterator[Listed]:
        for name, *dims in SmallLfm2.listed(self):
            _, block, part, *_ = [*name.split("."), "", ""]
            rows = self.hidden if part == "ffn_down" else self.width
            if part not in ("ffn_gate", "ffn_up", "ffn_down") or int(block) < self.leading:
                yield name, *dims
            else:
                of_each = self.experts, rows, self.hidden + self.width - rows
                yield name.replace(part, f"{part}_exps"), *of_each
        for i in range(self.leading, self.blocks):
            yield f"blk.{i}.ffn_gate_inp.weight", self.experts, self.hidden
            yield f"blk.{i}.exp_probs_b.bias", self.experts

    def shape(self) -> Shape:
        return replace(Small.shape(self), mixture=Mixture(self.experts, self.used, sigmoid=True))

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        SmallLfm2._sizes(self, writer)
        writer.add_expert_count(self.experts)
        writer.add_expert_used_count(self.used)
        writer.add_expert_feed_forward_length(self.width)
        writer.add_leading_dense_block_count(self.leading)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


@dataclass(frozen=True, slots=True)
class SmallQwen3Next(Small):
    """A random Qwen 3 Next, or Qwen 3.5 by `architecture`: gated delta nets, and attention in every
    `interval`-th block and in the last `mtp_blocks`. With `experts` networks are mixtures."""

    blocks: int = 3
    taps: int = 4
    state: int = 16
    rank: int = 6
    groups: int = 3
    interval: int = 2
    mtp_blocks: int = 0
    experts: int = 6
    used: int = 3
    width: int = 32
    architecture: str = "qwen3next"

    @property
    def rope_dims(self) -> int:
        return self.head_dim // 4 * 2

    def attends(self, block: int) -> bool:
        return (block + 1) % self.interval == 0 or block >= self.blocks - self.mtp_blocks

    def apart(self) -> dict[str, tuple[int, int]]:
        """Matrices that are not packed, generated as vectors."""
        return {"ssm_conv1d.weight": ((2 * self.groups + self.rank) * self.state, self.taps)}

    def listed(self) -> Iterator[Listed]:
        inner, (rows, taps) = self.rank * self.state, self.apart()["ssm_conv1d.weight"]
        gates = ["ssm_ba"] if self.architecture == "qwen3next" else ["ssm_beta", "ssm_alpha"]
        for name, *dims in Small.listed(self):
            _, block, part, *_ = [*name.split("."), "", ""]
            attends = not block.isdigit() or self.attends(int(block))
            if part == "attn_q":
                dims[0] *= 2
            dense = not self.experts or not part.startswith("ffn_") or part == "ffn_norm"
            if dense and (attends or not part.startswith("attn_") or part == "attn_norm"):
                yield name.replace("ffn_norm", "post_attention_norm"), *dims
        for block in range(self.blocks):
            if self.attends(block):
                yield from ((f"blk.{block}.attn_{n}_norm.weight", self.head_dim) for n in "qk")
                continue
            yield f"blk.{block}.attn_qkv.weight", rows, self.hidden
            yield f"blk.{block}.attn_gate.weight", inner, self.hidden
            yield f"blk.{block}.ssm_conv1d.weight", rows * taps
            for name in gates:
                yield f"blk.{block}.{name}.weight", 2 * self.rank // len(gates), self.hidden
            yield f"blk.{block}.ssm_dt.bias", self.rank
            yield f"blk.{block}.ssm_a", self.rank
            yield f"blk.{block}.ssm_norm.weight", self.state
            yield f"blk.{block}.ssm_out.weight", self.hidden, inner
        for block in range(self.blocks) if self.experts else ():
            yield f"blk.{block}.ffn_gate_inp.weight", self.experts, self.hidden
            yield f"blk.{block}.ffn_gate_inp_shexp.weight", self.hidden
            for kind, own in (("exps", (self.experts,)), ("shexp", ())):
                for name in ("gate", "up"):
                    yield f"blk.{block}.ffn_{name}_{kind}.weight", *own, self.width, self.hidden
                yield f"blk.{block}.ffn_down_{kind}.weight", *own, self.hidden, self.width

    def tensors(self) -> Tensors:
        """States decay, some fast and some slowly; convolutions have a magnitude of about 1."""
        weights, norms = Small.tensors(self)
        for name in norms:
            kind = name.partition("blk.")[2].partition(".")[2]
            if kind == "ssm_a":
                norms[name] = -np.exp(20 * norms[name])
            elif kind in self.apart():
                norms[name] = 5 * norms[name].reshape(self.apart()[kind])
        return weights, norms

    def shape(self) -> Shape:
        own = Mixture(self.experts, self.used) if self.experts else None
        return replace(Small.shape(self), mixture=own)

    def formula(self) -> Callable[..., Array]:
        return qwen3next

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        Small._sizes(self, writer)
        writer.add_full_attention_interval(self.interval)
        writer.add_ssm_conv_kernel(self.taps)
        writer.add_ssm_inner_size(self.rank * self.state)
        writer.add_ssm_state_size(self.state)
        writer.add_ssm_time_step_rank(self.rank)
        writer.add_ssm_group_count(self.groups)
        if self.architecture != "qwen3next":
            pairs = self.rope_dims // 2
            writer.add_rope_dimension_sections([*((pairs + 2 - i) // 3 for i in range(3)), 0])
        if self.experts:
            writer.add_expert_count(self.experts)
            writer.add_expert_used_count(self.used)
            writer.add_expert_feed_forward_length(self.width)
            writer.add_expert_shared_feed_forward_length(self.width)


RECURRENT: dict[str, Small] = {
    "Mamba": SmallMamba(),
    "Mamba, untied, F16": SmallMamba(tied=False, taps=3, state=7, format="F16", seed=1),
    "Mamba 2": SmallMamba(architecture="mamba2", state=7, groups=2),
    "Mamba 2, one group, F16": SmallMamba(architecture="mamba2", taps=3, format="F16", seed=1),
    "Granite 4": SmallGraniteHybrid(),
    "Granite 4, experts, two groups, F16": SmallGraniteHybrid(
        experts=6, shared=64, groups=2, tied=False, attending=(0,), format="F16", seed=1
    ),
    "LFM 2": SmallLfm2(),
    "LFM 2, experts": SmallLfm2Moe(),
    "LFM 2, untied, F16": SmallLfm2(
        tied=False, taps=4, attending=(0, 2), kv_heads=1, format="F16", seed=1
    ),
    "Qwen 3 Next": SmallQwen3Next(),
    "Qwen 3 Next, tied, F16": SmallQwen3Next(
        tied=True, taps=3, state=32, rank=4, groups=1, interval=3, used=1, format="F16", seed=1
    ),
    "Qwen 3.5": SmallQwen3Next(architecture="qwen35", experts=0),
    "Qwen 3.5, tied, F16": SmallQwen3Next(
        architecture="qwen35", experts=0, tied=True, rank=2, groups=2, format="F16", seed=1
    ),
    "Qwen 3.5, experts": SmallQwen3Next(
        architecture="qwen35moe", state=32, rank=4, groups=2, kv_heads=1
    ),
}
