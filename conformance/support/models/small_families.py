"""Small random models of families other than LLaMA, as GGUF files and as checkpoints."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from conformance.support.models.small_models import Listed, Small, Tensors, tampered
from reference import rope_frequencies
from reference.activations import gelu, gelu_erf, squared_relu
from reference.attention.alibi import alibi_slopes
from reference.gated_activations import swiglu
from reference.linear import linear, linear_of_quantised
from reference.models.command_r import command_r
from reference.models.deepseek2 import Latent, deepseek2
from reference.models.falcon import falcon
from reference.models.gemma import GemmaShape, gemma
from reference.models.gemma4 import Gemma4Shape, gemma4
from reference.models.gpt2 import gpt2
from reference.models.gpt_oss import GptOssShape, gpt_oss
from reference.models.mixture import Mixture
from reference.models.neox import neox
from reference.models.opt import UNUSED, opt
from reference.models.post_norm import post_norm
from reference.models.qwen import qwen
from reference.models.transformer import Scales, Shape, Weight, transformer
from reference.op import Array
from reference.rope import rope_neox, rope_norm


def norm(name: str, size: int) -> tuple[Listed, Listed]:
    return (f"{name}.weight", size), (f"{name}.bias", size)


def biased(name: str, rows: int, elements: int) -> tuple[Listed, Listed]:
    return (f"{name}.weight", rows, elements), (f"{name}.bias", rows)


@dataclass(frozen=True, slots=True)
class SmallFalcon(Small):
    """A random Falcon, tied; with `two_norms` attention has a norm of its own."""

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
    """A random OPT, tied; `context` is the number of learned positions."""

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


@dataclass(frozen=True, slots=True)
class SmallQwen(Small):
    """A random Qwen 3, or a family of its kind by `architecture`."""

    architecture: str = "qwen3"

    def listed(self) -> Iterator[Listed]:
        for name, *dims in Small.listed(self):
            if self.architecture == "seed_oss":
                name = name.replace("ffn_norm", "post_attention_norm")
            yield name, *dims
        sizes = {"q": self.heads, "k": self.kv_heads, "v": self.kv_heads}
        for i in range(self.blocks):
            if self.architecture in ("olmoe", "minimax-m2"):
                yield from (
                    (f"blk.{i}.attn_{n}_norm.weight", sizes[n] * self.head_dim) for n in "qk"
                )
            elif self.architecture in ("qwen2", "qwen2moe", "qwen2vl", "seed_oss", "glm4moe"):
                yield from ((f"blk.{i}.attn_{n}.bias", sizes[n] * self.head_dim) for n in sizes)
            elif self.architecture != "exaone":
                yield from ((f"blk.{i}.attn_{n}_norm.weight", self.head_dim) for n in "qk")

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        Small._sizes(self, writer)
        sections_of_images(self, writer)

    def formula(self) -> Callable[..., Array]:
        return partial(qwen, norm_after_rope=self.architecture.startswith("hunyuan"))


def sections_of_images(small: Small, writer: gguf.GGUFWriter) -> None:
    """What a head's pairs are to models that see, as llama.cpp's converter writes it."""
    third, pairs = small.rope_dims // 6, small.rope_dims // 2
    if small.architecture == "qwen2vl":
        writer.add_rope_dimension_sections([third, third, pairs - 2 * third, 0])
    elif small.architecture.startswith("qwen3vl"):
        writer.add_rope_dimension_sections([*((pairs + 2 - i) // 3 for i in range(3)), 0])
        writer.add_num_deepstack_layers(3)


def scales_of_granite(writer: gguf.GGUFWriter) -> None:
    """Granite's scale keys."""
    writer.add_embedding_scale(12.0)
    writer.add_residual_scale(0.22)
    writer.add_attention_scale(0.0625)
    writer.add_logit_scale(8.0)


@dataclass(frozen=True, slots=True)
class SmallMixture(Small):
    """A random mixture of experts: Qwen 3's, or by `architecture`; `shared` is the width of the
    shared expert."""

    architecture: str = "qwen3moe"
    experts: int = 6
    used: int = 3
    width: int = 32
    shared: int = 0
    scale: float = 1.0
    groups: int = 1
    kept: int = 1
    sigmoid: bool = False  # routing with a bias
    leading: int = 0  # dense blocks
    every: int = 1  # interval of blocks with experts

    @property
    def rope_dims(self) -> int:
        half = self.architecture in ("glm4moe", "minimax-m2")
        return self.head_dim // 2 if half else self.head_dim

    def routes(self, i: int) -> bool:
        return i >= self.leading and (i + 1) % self.every == 0

    def listed(self) -> Iterator[Listed]:
        plain = self.architecture in ("llama", "granitemoe", "gpt-oss", "ernie4_5-moe")
        of_attention = Small if plain else SmallQwen
        dense = tuple(f"blk.{i}." for i in range(self.blocks) if not self.routes(i))
        for name, *dims in of_attention.listed(self):  # type: ignore[arg-type]
            if ".ffn_norm" in name or ".ffn_" not in name or name.startswith(dense):
                yield name, *dims
        for i in filter(self.routes, range(self.blocks)):
            block = f"blk.{i}"
            yield f"{block}.ffn_gate_inp.weight", self.experts, self.hidden
            for kind, width in (("exps", self.width), ("shexp", self.shared)):
                own = (self.experts,) if kind == "exps" else ()
                for name in ("gate", "up") if width else ():
                    yield f"{block}.ffn_{name}_{kind}.weight", *own, width, self.hidden
                if width:
                    yield f"{block}.ffn_down_{kind}.weight", *own, self.hidden, width
            if self.sigmoid or self.architecture == "ernie4_5-moe":
                yield f"{block}.exp_probs_b.bias", self.experts
            if self.architecture == "qwen2moe":
                yield f"{block}.ffn_gate_inp_shexp.weight", self.hidden

    def tensors(self) -> Tensors:
        """ERNIE's bias of the choice is a row, as llama.cpp's converter writes it."""
        weights, norms = Small.tensors(self)
        for name in (n for n in norms if self.architecture == "ernie4_5-moe" and "exp_probs" in n):
            norms[name] = norms[name].reshape(1, -1)
        return weights, norms

    def shape(self) -> Shape:
        normed = self.architecture not in ("qwen2moe", "olmoe")
        own = Mixture(
            self.experts, self.used, normed, False, self.scale, self.groups, self.kept, self.sigmoid
        )
        scales = GRANITE if self.architecture == "granitemoe" else Scales()
        return replace(Small.shape(self), mixture=own, scales=scales)

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        Small._sizes(self, writer)
        sections_of_images(self, writer)
        if self.architecture == "granitemoe":
            scales_of_granite(writer)
        writer.add_expert_count(self.experts)
        writer.add_expert_used_count(self.used)
        writer.add_expert_feed_forward_length(self.width)
        if self.every > 1:
            listed = [self.routes(i) for i in range(self.blocks)]
            writer.add_array(f"{self.architecture}.expert_layers", listed)
        if self.architecture in ("glm4moe", "dots1"):
            writer.add_expert_shared_count(self.shared // self.width)
            writer.add_expert_weights_norm(True)
        elif self.shared:
            writer.add_expert_shared_feed_forward_length(self.shared)
        if self.leading:
            writer.add_leading_dense_block_count(self.leading)
        if self.architecture == "ernie4_5-moe":
            writer.add_interleave_moe_layer_step(1)
        if self.sigmoid:
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        if self.scale != 1:
            writer.add_expert_weights_scale(self.scale)
        if self.groups > 1:
            writer.add_expert_group_count(self.groups)
            writer.add_expert_group_used_count(self.kept)

    def formula(self) -> Callable[..., Array]:
        if self.architecture in ("llama", "granitemoe", "ernie4_5-moe"):
            return transformer
        return partial(qwen, norm_after_rope=self.architecture == "hunyuan-moe")


@dataclass(frozen=True, slots=True)
class SmallGlmMoe(SmallMixture):
    """A random GLM 4.5; `head_norms` adds norms of heads."""

    architecture: str = "glm4moe"
    blocks: int = 3
    shared: int = 64
    scale: float = 2.5
    sigmoid: bool = True
    leading: int = 1
    head_norms: bool = True

    def listed(self) -> Iterator[Listed]:
        for name, *dims in SmallMixture.listed(self):
            yield name.replace("ffn_norm", "post_attention_norm"), *dims
        for i in range(self.blocks if self.head_norms else 0):
            yield from ((f"blk.{i}.attn_{n}_norm.weight", self.head_dim) for n in "qk")


@dataclass(frozen=True, slots=True)
class SmallGptOss(SmallMixture):
    """A random gpt-oss."""

    architecture: str = "gpt-oss"
    activation: str = "swiglu_oai"
    blocks: int = 3
    biases: bool = True
    window: int = 7

    def listed(self) -> Iterator[Listed]:
        for name, *dims in SmallMixture.listed(self):
            yield name.replace("ffn_norm", "post_attention_norm"), *dims
        for i in range(self.blocks):
            yield f"blk.{i}.attn_sinks.weight", self.heads
            yield f"blk.{i}.ffn_gate_inp.bias", self.experts
            for name, rows in (("gate", self.width), ("up", self.width), ("down", self.hidden)):
                yield f"blk.{i}.ffn_{name}_exps.bias", self.experts, rows

    def shape(self) -> GptOssShape:
        sizes = Small.shape(self)
        fields = {name: getattr(sizes, name) for name in Shape.__dataclass_fields__}
        fields["mixture"] = Mixture(self.experts, self.used, of_chosen=True)
        return GptOssShape(**fields, window=self.window)

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        SmallMixture._sizes(self, writer)
        writer.add_sliding_window(self.window)

    def formula(self) -> Callable[..., Array]:
        return gpt_oss


@dataclass(frozen=True, slots=True)
class SmallNeoX(Small):
    """A random GPT-NeoX, Phi 2, StarCoder 2, StableLM or Nemotron, by `architecture`; `parallel`
    residuals are always Phi's and never StarCoder's or Nemotron's, and `fused` queries, keys and
    values always GPT-NeoX's. `head_norms` adds norms of heads, `biases` biases to Nemotron's
    projections."""

    kv_heads: int = 4
    architecture: str = "gptneox"
    parallel: bool = True
    fused: bool = False
    head_norms: bool = False

    @property
    def rope_dims(self) -> int:
        return self.head_dim if self.architecture == "starcoder2" else self.head_dim // 4 * 2

    def listed(self) -> Iterator[Listed]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        stablelm, bare = self.architecture == "stablelm", self.architecture == "nemotron"
        inputs = 1 if bare and not self.biases else 2
        others = 1 if stablelm else inputs
        yield "token_embd.weight", self.vocab, self.hidden
        for i in range(self.blocks):
            block = f"blk.{i}"
            yield from norm(f"{block}.attn_norm", self.hidden)
            if self.fused or self.architecture == "gptneox":
                yield from biased(f"{block}.attn_qkv", q + 2 * kv, self.hidden)
            else:
                for name, rows in (("q", q), ("k", kv), ("v", kv)):
                    yield from biased(f"{block}.attn_{name}", rows, self.hidden)[:inputs]
            if self.head_norms:
                yield f"{block}.attn_q_norm.weight", self.heads, self.head_dim
                yield f"{block}.attn_k_norm.weight", self.kv_heads, self.head_dim
            yield from biased(f"{block}.attn_output", self.hidden, q)[:others]
            if self.architecture == "gptneox" or not self.parallel:
                yield from norm(f"{block}.ffn_norm", self.hidden)
            if stablelm:
                yield f"{block}.ffn_gate.weight", self.ffn, self.hidden
            yield from biased(f"{block}.ffn_up", self.ffn, self.hidden)[:others]
            yield from biased(f"{block}.ffn_down", self.hidden, self.ffn)[:others]
        yield from norm("output_norm", self.hidden)
        if not self.tied:
            phi = self.architecture == "phi2"
            yield from biased("output", self.vocab, self.hidden)[: 2 if phi else 1]

    def formula(self) -> Callable[..., Array]:
        own = {"stablelm": swiglu, "gptneox": gelu_erf, "nemotron": squared_relu}
        activation = own.get(self.architecture, gelu)
        return partial(neox, parallel=self.parallel, activation=activation)

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        Small._sizes(self, writer)
        if self.architecture in ("gptneox", "stablelm"):
            writer.add_parallel_residual(self.parallel)


@dataclass(frozen=True, slots=True)
class SmallGPT2(Small):
    """A random GPT-2, BLOOM or MPT, tied; `steep` is ALiBi's, stored only in MPT's file. MPT may
    have biases of projections, but none of norms."""

    kv_heads: int = 4
    tied: bool = True
    context: int = 40
    steep: float = 8.0
    architecture: str = "gpt2"

    def listed(self) -> Iterator[Listed]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        mpt = self.architecture == "mpt"
        norms, others = (1, 2 if self.biases else 1) if mpt else (2, 2)
        yield "token_embd.weight", self.vocab, self.hidden
        if self.architecture == "gpt2":
            yield "position_embd.weight", self.context, self.hidden
        if self.architecture == "bloom":
            yield from norm("token_embd_norm", self.hidden)
        for i in range(self.blocks):
            yield from norm(f"blk.{i}.attn_norm", self.hidden)[:norms]
            yield from biased(f"blk.{i}.attn_qkv", q + 2 * kv, self.hidden)[:others]
            yield from biased(f"blk.{i}.attn_output", self.hidden, q)[:others]
            yield from norm(f"blk.{i}.ffn_norm", self.hidden)[:norms]
            yield from biased(f"blk.{i}.ffn_up", self.ffn, self.hidden)[:others]
            yield from biased(f"blk.{i}.ffn_down", self.hidden, self.ffn)[:others]
        yield from norm("output_norm", self.hidden)[:norms]
        if not self.tied:
            yield "output.weight", self.vocab, self.hidden

    def formula(self) -> Callable[..., Array]:
        slopes = None if self.architecture == "gpt2" else alibi_slopes(self.heads, self.steep)
        activation = gelu_erf if self.architecture == "mpt" else gelu
        return partial(gpt2, activation=activation, slopes=slopes)

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        Small._sizes(self, writer)
        if self.architecture == "mpt":
            writer.add_max_alibi_bias(self.steep)


GRANITE = Scales(embedding=12.0, residual=0.22, attention=0.0625, logits=1 / 8)
MINICPM = Scales(embedding=12.0, residual=0.25, logits=1 / 4)


@dataclass(frozen=True, slots=True)
class SmallKin(Small):
    """A random model of a family that differs from LLaMA only in constants, or lacks gates; `long`
    adds divisors for contexts up to 64 and for longer ones."""

    long: bool = False

    def listed(self) -> Iterator[Listed]:
        for it in Small.listed(self):
            if self.architecture != "arcee" or "ffn_gate" not in it[0]:
                yield it
        yield from divisors(self.rope_dims) if self.long else ()

    def tensors(self) -> Tensors:
        return divided(Small.tensors(self))

    def shape(self) -> Shape:
        """LLaMA's, with the family's constants, for short contexts."""
        constants = {"smollm3": {"no_rope": 4}, "granite": {"scales": GRANITE},
                     "minicpm": {"scales": MINICPM}, "mistral3": TEMPERED}  # fmt: skip
        plain = replace(Small.shape(self), **constants.get(self.architecture, {}))
        divisors = self.tensors()[1].get("rope_factors_short.weight", 1.0)
        return replace(plain, frequencies=plain.frequencies / divisors)

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        Small._sizes(self, writer)
        if self.architecture == "granite":
            scales_of_granite(writer)
        if self.architecture == "minicpm":
            writer.add_embedding_scale(MINICPM.embedding)
            writer.add_residual_scale(MINICPM.residual)
            writer.add_logit_scale(1 / MINICPM.logits)
        if self.long:
            writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
            writer.add_rope_scaling_orig_ctx_len(64)
        if self.architecture == "mistral3":
            writer.add_attn_temperature_scale(TEMPERED["temperature"])
            writer.add_rope_scaling_orig_ctx_len(TEMPERED["length"])


TEMPERED: dict[str, Any] = {"temperature": 0.5, "length": 7}


@dataclass(frozen=True, slots=True)
class SmallOLMo(Small):
    """A random OLMo 2, or EXAONE 4 if `architecture` says so, perhaps with a `window`."""

    architecture: str = "olmo2"
    window: int = 0

    def listed(self) -> Iterator[Listed]:
        before = ("attn_norm", "ffn_norm")
        yield from (it for it in Small.listed(self) if it[0].split(".")[-2] not in before)
        of_all = self.architecture == "olmo2"
        for i in range(self.blocks):
            yield f"blk.{i}.attn_q_norm.weight", self.head_dim * (self.heads if of_all else 1)
            yield f"blk.{i}.attn_k_norm.weight", self.head_dim * (self.kv_heads if of_all else 1)
            yield f"blk.{i}.post_attention_norm.weight", self.hidden
            yield f"blk.{i}.post_ffw_norm.weight", self.hidden

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        Small._sizes(self, writer)
        if self.window:
            writer.add_sliding_window(self.window)

    def formula(self) -> Callable[..., Array]:
        windowed = frozenset(i for i in range(self.blocks) if self.window and i % 4 != 3)
        return partial(post_norm, window=self.window, windowed=windowed)


@dataclass(frozen=True, slots=True)
class SmallGLM(Small):
    """A random GLM 4, with RoPE on the first half of a head."""

    architecture: str = "glm4"

    def listed(self) -> Iterator[Listed]:
        listed = joined(self, Small.listed(self))
        yield from (it for it in listed if not it[0].endswith("attn_output.bias"))
        for i in range(self.blocks):
            yield f"blk.{i}.post_attention_norm.weight", self.hidden
            yield f"blk.{i}.post_ffw_norm.weight", self.hidden

    @property
    def rope_dims(self) -> int:
        return self.head_dim // 2

    def formula(self) -> Callable[..., Array]:
        return partial(post_norm, rope=rope_norm)


@dataclass(frozen=True, slots=True)
class SmallPhi(Small):
    """A random Phi 3, with RoPE on all but two dimensions of a head; `long` adds divisors for
    contexts up to 64 and for longer ones."""

    architecture: str = "phi3"
    long: bool = False

    def listed(self) -> Iterator[Listed]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        for name, *dims in joined(self, Small.listed(self)):
            if name.endswith("attn_q.weight"):
                yield name.replace("attn_q", "attn_qkv"), q + 2 * kv, self.hidden
            elif not name.endswith(("attn_k.weight", "attn_v.weight")):
                yield name, *dims
        yield from divisors(self.rope_dims) if self.long else ()

    def tensors(self) -> Tensors:
        return divided(Small.tensors(self))

    @property
    def rope_dims(self) -> int:
        return self.head_dim - 2

    def shape(self) -> Shape:
        """For short contexts."""
        return self.shape_of("short")

    def shape_of(self, kind: str) -> Shape:
        """For short or long contexts."""
        divisors = self.tensors()[1].get(f"rope_factors_{kind}.weight", 1.0)
        plain = Small.shape(self)
        return replace(plain, frequencies=plain.frequencies / divisors)

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        Small._sizes(self, writer)
        if self.long:
            writer.add_rope_scaling_orig_ctx_len(64)

    def formula(self) -> Callable[..., Array]:
        return qwen


@dataclass(frozen=True, slots=True)
class SmallCommandR(Small):
    """A random Command R, tied, with logits scaled by 1/4; or Command R7B by `architecture`, or
    Command R+ with norms of heads."""

    tied: bool = True
    architecture: str = "command-r"
    window: int = 5
    head_norms: bool = False

    def listed(self) -> Iterator[Listed]:
        yield from (it for it in Small.listed(self) if not it[0].endswith("ffn_norm.weight"))
        for i in range(self.blocks if self.head_norms else 0):
            yield f"blk.{i}.attn_q_norm.weight", self.heads, self.head_dim
            yield f"blk.{i}.attn_k_norm.weight", self.kv_heads, self.head_dim

    def shape(self) -> Shape:
        return replace(Small.shape(self), scales=Scales(logits=0.25))

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        Small._sizes(self, writer)
        writer.add_logit_scale(0.25)
        if self.architecture == "cohere2":
            writer.add_sliding_window(self.window)

    def formula(self) -> Callable[..., Array]:
        if self.architecture == "command-r":
            return command_r
        windowed = frozenset(i for i in range(self.blocks) if i % 4 != 3)
        return partial(command_r, window=self.window, windowed=windowed)


@dataclass(frozen=True, slots=True)
class SmallDeepSeek(Small):
    """A random DeepSeek-V2, with `leading` dense blocks; queries have a latent vector of `q_rank`,
    unless that is 0. A head's key has `nope` elements before the `turned` ones (RoPE). With
    `groups` its router is V3's; `joined` stores attn_kv_b as one tensor."""

    architecture: str = "deepseek2"
    blocks: int = 3
    leading: int = 1
    q_rank: int = 40
    kv_rank: int = 32
    nope: int = 12
    turned: int = 8
    value: int = 20
    experts: int = 6
    used: int = 2
    width: int = 32
    shared: int = 2
    scale: float = 1.0
    groups: int = 0
    kept: int = 1
    joined: bool = False

    @property
    def rope_dims(self) -> int:
        return self.turned

    def listed(self) -> Iterator[Listed]:
        hidden, heads, key = self.hidden, self.heads, self.nope + self.turned
        yield "token_embd.weight", self.vocab, hidden
        yield "output_norm.weight", hidden
        for i in range(self.blocks):
            block = f"blk.{i}"
            yield f"{block}.attn_norm.weight", hidden
            if self.q_rank:
                yield f"{block}.attn_q_a.weight", self.q_rank, hidden
                yield f"{block}.attn_q_a_norm.weight", self.q_rank
                yield f"{block}.attn_q_b.weight", heads * key, self.q_rank
            else:
                yield f"{block}.attn_q.weight", heads * key, hidden
            yield f"{block}.attn_kv_a_mqa.weight", self.kv_rank + self.turned, hidden
            yield f"{block}.attn_kv_a_norm.weight", self.kv_rank
            if self.joined:
                yield f"{block}.attn_kv_b.weight", heads * (self.nope + self.value), self.kv_rank
            else:
                yield f"{block}.attn_k_b.weight", heads, self.kv_rank, self.nope
                yield f"{block}.attn_v_b.weight", heads, self.value, self.kv_rank
            yield f"{block}.attn_output.weight", hidden, heads * self.value
            yield f"{block}.ffn_norm.weight", hidden
            if i >= self.leading:
                yield f"{block}.ffn_gate_inp.weight", self.experts, hidden
                if self.groups:
                    yield f"{block}.exp_probs_b.bias", self.experts
            kinds = (("_exps", self.width), ("_shexp", self.shared * self.width))
            for kind, width in kinds if i >= self.leading else (("", self.ffn),):
                own = (self.experts,) if kind == "_exps" else ()
                for name in ("gate", "up"):
                    yield f"{block}.ffn_{name}{kind}.weight", *own, width, hidden
                yield f"{block}.ffn_down{kind}.weight", *own, hidden, width
        if not self.tied:
            yield "output.weight", self.vocab, hidden

    def shape(self) -> Shape:
        own = Mixture(self.experts, self.used, False, False, self.scale)
        if self.groups:
            own = replace(own, normed=True, groups=self.groups, kept=self.kept, sigmoid=True)
        return replace(Small.shape(self), mixture=own)

    def formula(self) -> Callable[..., Array]:
        scale = (self.nope + self.turned) ** -0.5
        own = Latent(self.kv_rank, self.nope, scale, self.leading, eps=1e-5)
        return partial(deepseek2, own=own)

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        if self.joined:  # llama.cpp's format until April 2025
            of_heads = replace(self, kv_heads=self.heads, head_dim=self.nope + self.turned)
            Small._sizes(of_heads, writer)
            writer.add_value_length(self.value)
        else:
            one = replace(self, kv_heads=1, head_dim=self.kv_rank + self.turned)
            Small._sizes(one, writer)
            writer.add_value_length(self.kv_rank)
            writer.add_key_length_mla(self.nope + self.turned)
            writer.add_value_length_mla(self.value)
        writer.add_kv_lora_rank(self.kv_rank)
        if self.q_rank:
            writer.add_q_lora_rank(self.q_rank)
        writer.add_leading_dense_block_count(self.leading)
        writer.add_expert_count(self.experts)
        writer.add_expert_used_count(self.used)
        writer.add_expert_feed_forward_length(self.width)
        writer.add_expert_shared_count(self.shared)
        writer.add_expert_weights_scale(self.scale)
        if self.groups:
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
            writer.add_expert_weights_norm(True)
            writer.add_expert_group_count(self.groups)
            writer.add_expert_group_used_count(self.kept)


@dataclass(frozen=True, slots=True)
class SmallMiniCPM(SmallDeepSeek):
    """A random MiniCPM 3; `long` adds divisors for contexts up to 64 and for longer ones."""

    architecture: str = "minicpm3"
    blocks: int = 2
    leading: int = 2
    value: int = 16  # the hidden size divided by heads, which no key stores
    joined: bool = True
    long: bool = False

    def listed(self) -> Iterator[Listed]:
        yield from SmallDeepSeek.listed(self)
        yield from divisors(self.turned) if self.long else ()

    def tensors(self) -> Tensors:
        return divided(Small.tensors(self))

    def shape(self) -> Shape:
        """For short contexts."""
        plain = Small.shape(self)
        divisors = self.tensors()[1].get("rope_factors_short.weight", 1.0)
        scales = Scales(12.0, 1.4 / self.blocks**0.5, logits=256 / self.hidden)
        return replace(plain, frequencies=plain.frequencies / divisors, scales=scales)

    def formula(self) -> Callable[..., Array]:
        scale = (self.nope + self.turned) ** -0.5
        own = Latent(self.kv_rank, self.nope, scale, self.leading, eps=1e-6, rope=rope_neox)
        return partial(deepseek2, own=own)

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        """As llama.cpp's converter writes them."""
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.blocks)
        writer.add_feed_forward_length(self.ffn)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.heads)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_q_lora_rank(self.q_rank)
        writer.add_kv_lora_rank(self.kv_rank)
        writer.add_key_length(self.nope + self.turned)
        writer.add_rope_dimension_count(self.turned)
        if self.long:
            writer.add_rope_scaling_orig_ctx_len(64)


def divisors(dims: int) -> Iterator[Listed]:
    """Divisors of RoPE's frequencies for a model's original context, and for longer ones."""
    yield "rope_factors_short.weight", dims // 2
    yield "rope_factors_long.weight", dims // 2


def divided(tensors: Tensors) -> Tensors:
    """The same tensors with divisors above 1, if they have any."""
    weights, norms = tensors
    for kind, base in (("short", 1), ("long", 8)):
        if (name := f"rope_factors_{kind}.weight") in norms:
            norms[name] = base + abs(norms[name])
    return weights, norms


def joined(small: Small, listed: Iterator[Listed]) -> Iterator[Listed]:
    """Gate and up as one tensor."""
    for name, *dims in listed:
        if name.endswith("ffn_up.weight"):
            yield name, 2 * small.ffn, small.hidden
        elif not name.endswith("ffn_gate.weight"):
            yield name, *dims


@dataclass(frozen=True, slots=True)
class SmallGemma(Small):
    """A random Gemma, tied, or Gemma 2 or 3 by `architecture`: 2 has effective softcaps, 3 only
    that of logits; both have windows, in one of two or five of six blocks, and 3 has scaled RoPE in
    blocks without one."""

    tied: bool = True
    architecture: str = "gemma"
    window: int = 5
    score_scale: float = 0.0
    caps: tuple[float, float] = (2.0, 3.0)

    def listed(self) -> Iterator[Listed]:
        yield from Small.listed(self)
        if self.architecture != "gemma":
            for i in range(self.blocks):
                for name in ("post_attention_norm", "post_ffw_norm"):
                    yield f"blk.{i}.{name}.weight", self.hidden
                if self.architecture == "gemma3":
                    yield from ((f"blk.{i}.attn_{n}_norm.weight", self.head_dim) for n in "qk")

    def shape(self) -> GemmaShape:
        plain = asdict(Small.shape(self))
        if self.architecture == "gemma":
            return GemmaShape(**plain)
        score_cap, logit_cap = self.caps
        more = {"score_scale": self.score_scale, "logit_cap": logit_cap, "window": self.window}
        every = range(self.blocks)
        if self.architecture == "gemma2":
            windowed = frozenset(i for i in every if i % 2 == 0)
            return GemmaShape(**plain, **more, score_cap=score_cap, windowed=windowed)
        stretched = rope_frequencies.plain(self.head_dim, 1e6)
        own, plain["frequencies"] = (
            plain["frequencies"],
            rope_frequencies.interpolated(stretched, 8),
        )
        windowed = frozenset(i for i in every if i % 6 != 5)
        return GemmaShape(**plain, **more, windowed=windowed, window_frequencies=own)

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        Small._sizes(self, writer)
        if self.architecture != "gemma":
            score_cap, logit_cap = self.caps
            writer.add_sliding_window(self.window)
            writer.add_final_logit_softcapping(logit_cap)
            if self.architecture == "gemma2":
                writer.add_attn_logit_softcapping(score_cap)
            else:
                writer.add_rope_freq_base(1e6)
                writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
                writer.add_rope_scaling_factor(8.0)
        if self.score_scale:
            writer.add_attention_scale(self.score_scale)

    def formula(self) -> Callable[..., Array]:
        return gemma


@dataclass(frozen=True, slots=True)
class SmallGemma4(Small):
    """A random Gemma 4, tied, with a softcap of logits. Every third block has global attention,
    heads of `head_dim`, half of which have RoPE, and `full_kv_heads`, with values of their own
    unless `keys_alone`; the others have a window and `window_dim`. The last `shared` blocks have no
    keys. `experts` are added to dense networks."""

    tied: bool = True
    architecture: str = "gemma4"
    blocks: int = 6
    head_dim: int = 24
    window_dim: int = 16
    full_kv_heads: int = 1
    window: int = 5
    shared: int = 3
    per_layer: int = 32
    keys_alone: bool = False
    experts: int = 0
    used: int = 2
    width: int = 32

    @property
    def windowed(self) -> list[bool]:
        return [i % 3 != 2 for i in range(self.blocks)]

    @property
    def widths(self) -> list[int]:
        """Widths of the networks, doubled in blocks without keys."""
        first = self.blocks - self.shared
        return [self.ffn * (1 + (i >= first)) for i in range(self.blocks)]

    def listed(self) -> Iterator[Listed]:
        hidden, each = self.hidden, self.per_layer
        yield "token_embd.weight", self.vocab, hidden
        yield "output_norm.weight", hidden
        if each:
            yield "per_layer_token_embd.weight", self.vocab, self.blocks * each
            yield "per_layer_model_proj.weight", self.blocks * each, hidden
            yield "per_layer_proj_norm.weight", each
        for i, (windowed, ffn) in enumerate(zip(self.windowed, self.widths, strict=True)):
            block, size = f"blk.{i}", self.window_dim if windowed else self.head_dim
            kv = (self.kv_heads if windowed else self.full_kv_heads) * size
            yield f"{block}.attn_q.weight", self.heads * size, hidden
            yield f"{block}.attn_q_norm.weight", size
            if i < self.blocks - self.shared:
                yield f"{block}.attn_k.weight", kv, hidden
                yield f"{block}.attn_k_norm.weight", size
                if windowed or not self.keys_alone:
                    yield f"{block}.attn_v.weight", kv, hidden
            yield f"{block}.attn_output.weight", hidden, self.heads * size
            yield f"{block}.ffn_gate.weight", ffn, hidden
            yield f"{block}.ffn_up.weight", ffn, hidden
            yield f"{block}.ffn_down.weight", hidden, ffn
            for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
                yield f"{block}.{name}.weight", hidden
            if self.experts:
                yield f"{block}.ffn_gate_inp.weight", self.experts, hidden
                yield f"{block}.ffn_gate_inp.scale", hidden
                for name in ("gate", "up"):
                    yield f"{block}.ffn_{name}_exps.weight", self.experts, self.width, hidden
                yield f"{block}.ffn_down_exps.weight", self.experts, hidden, self.width
                yield f"{block}.ffn_down_exps.scale", self.experts
                for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
                    yield f"{block}.{name}.weight", hidden
            if each:
                yield f"{block}.inp_gate.weight", each, hidden
                yield f"{block}.proj.weight", hidden, each
                yield f"{block}.post_norm.weight", hidden
            yield f"{block}.layer_output_scale.weight", 1
        yield "rope_freqs.weight", self.head_dim // 2
        if not self.tied:
            yield "output.weight", self.vocab, hidden

    def tensors(self) -> Tensors:
        """Blocks' scales are near 1/2, half of a head rotates very slowly, and queries are small,
        since scores have no scale."""
        weights, norms = Small.tensors(self)
        turned = np.arange(self.head_dim // 2) < self.head_dim // 4
        norms["rope_freqs.weight"] = np.where(turned, 1, 1e30).astype(np.float32)
        for name in [name for name in norms if name.endswith("layer_output_scale.weight")]:
            norms[name] = norms[name] + np.float32(0.5)
        for name in [name for name in norms if name.endswith("attn_q_norm.weight")]:
            norms[name] = norms[name] * np.float32(self.head_dim**-0.5)
        for name in [name for name in norms if name.endswith(".scale")]:
            norms[name] = norms[name] + np.float32(1)
        return weights, norms

    def shape(self) -> Gemma4Shape:
        plain = asdict(Small.shape(self))
        divisors = self.tensors()[1]["rope_freqs.weight"].astype(np.float64)
        plain["frequencies"] = rope_frequencies.plain(self.head_dim, 1e6) / divisors
        plain["mixture"] = Mixture(self.experts, self.used) if self.experts else None
        return Gemma4Shape(
            **plain,
            window=self.window,
            windowed=frozenset(i for i, has in enumerate(self.windowed) if has),
            window_dim=self.window_dim,
            window_frequencies=rope_frequencies.plain(self.window_dim, 10000.0),
            shared=self.shared,
            per_layer=self.per_layer,
            logit_cap=3.0,
        )

    def formula(self) -> Callable[..., Array]:
        return gemma4

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        """As llama.cpp's converter writes them."""
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.blocks)
        writer.add_feed_forward_length(self.widths)
        writer.add_head_count(self.heads)
        kinds = (self.full_kv_heads, self.kv_heads)
        writer.add_head_count_kv([kinds[windowed] for windowed in self.windowed])
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
        writer.add_key_length_swa(self.window_dim)
        writer.add_value_length_swa(self.window_dim)
        writer.add_rope_dimension_count(self.head_dim)
        writer.add_rope_dimension_count_swa(self.window_dim)
        writer.add_rope_freq_base(1e6)
        writer.add_rope_freq_base_swa(10000.0)
        writer.add_sliding_window(self.window)
        writer.add_sliding_window_pattern(self.windowed)
        writer.add_shared_kv_layers(self.shared)
        writer.add_embedding_length_per_layer_input(self.per_layer)
        writer.add_final_logit_softcapping(3.0)
        if self.experts:
            writer.add_expert_count(self.experts)
            writer.add_expert_used_count(self.used)
            writer.add_expert_feed_forward_length(self.width)


def joined_experts(small: Small) -> Small:
    """The same model, with gates and ups of a block's experts in one tensor."""

    def made(weights: dict[str, Weight], norms: dict[str, Array]) -> Tensors:
        for name in [name for name in weights if name.endswith("ffn_gate_exps.weight")]:
            block, gate = name.removesuffix("gate_exps.weight"), weights.pop(name)
            both = [gate.data, weights.pop(f"{block}up_exps.weight").data]
            joined = np.concatenate(both, axis=1)
            weights[f"{block}gate_up_exps.weight"] = Weight(joined, gate.format)
        return weights, norms

    return tampered(small, made)


Subject = Small
SUBJECTS: dict[str, Subject] = {
    "Falcon, one head of keys": SmallFalcon(kv_heads=1, ffn=100),
    "Falcon, groups and two norms": SmallFalcon(two_norms=True, kv_heads=2, seed=1),
    "Falcon, untied": SmallFalcon(kv_heads=4, tied=False, seed=2),
    "Falcon, F16": SmallFalcon(two_norms=True, format="F16", seed=3),
    "OPT": SmallOPT(ffn=100),
    "OPT, F16": SmallOPT(format="F16", seed=1),
    "Qwen 2": SmallQwen(architecture="qwen2", ffn=100),
    "Qwen 3, wide heads": SmallQwen(head_dim=24, ffn=100, seed=1),
    "Qwen 3, tied, F16": SmallQwen(tied=True, kv_heads=4, format="F16", seed=2),
    "GPT-NeoX": SmallNeoX(ffn=100),
    "GPT-NeoX, in turn": SmallNeoX(parallel=False, format="F16", seed=1),
    "Phi 2": SmallNeoX(architecture="phi2", ffn=100),
    "Phi 2, fused": SmallNeoX(architecture="phi2", fused=True, kv_heads=2, seed=1),
    "StarCoder 2": SmallNeoX(architecture="starcoder2", parallel=False, kv_heads=2, ffn=100),
    "StableLM": SmallNeoX(architecture="stablelm", parallel=False, kv_heads=2, ffn=100),
    "StableLM, side by side": SmallNeoX(architecture="stablelm", fused=True, seed=1),
    "StableLM, norms of heads": SmallNeoX(
        architecture="stablelm", kv_heads=2, head_dim=20, head_norms=True, ffn=100, seed=2
    ),
    "Nemotron": SmallNeoX(architecture="nemotron", parallel=False, kv_heads=2, ffn=100),
    "Nemotron, wide heads, biases, F16": SmallNeoX(
        architecture="nemotron", parallel=False, head_dim=24, biases=True, format="F16", seed=1
    ),
    "GPT-2": SmallGPT2(ffn=100),
    "GPT-2, untied, F16": SmallGPT2(tied=False, format="F16", seed=1),
    "BLOOM": SmallGPT2(architecture="bloom", ffn=100),
    "BLOOM, three heads": SmallGPT2(architecture="bloom", heads=3, kv_heads=3, head_dim=20),
    "MPT": SmallGPT2(architecture="mpt", ffn=100),
    "MPT, steeper, biases": SmallGPT2(architecture="mpt", kv_heads=2, steep=3.0, biases=True),
    "SmolLM 3": SmallKin(architecture="smollm3", blocks=5, tied=True, ffn=100),
    "Granite": SmallKin(architecture="granite", biases=True, ffn=100, seed=1),
    "Ministral 3": SmallKin(architecture="mistral3", head_dim=20, ffn=100, seed=2),
    "InternLM 2": SmallKin(architecture="internlm2", ffn=100, seed=4),
    "MiniCPM": SmallKin(architecture="minicpm", tied=True, ffn=100, seed=5),
    "MiniCPM 4, long rope, F16": SmallKin(
        architecture="minicpm", long=True, context=64, format="F16", seed=6
    ),
    "Arcee": SmallKin(architecture="arcee", ffn=100, seed=3),
    "Hunyuan": SmallQwen(architecture="hunyuan-dense", head_dim=24, ffn=100, seed=4),
    "Qwen 2 VL": SmallQwen(architecture="qwen2vl", ffn=100, seed=6),
    "Qwen 3 VL": SmallQwen(architecture="qwen3vl", tied=True, ffn=100, seed=7),
    "OLMo 2": SmallOLMo(ffn=100),
    "EXAONE 3": SmallQwen(architecture="exaone", tied=True, head_dim=24, ffn=100, seed=5),
    "EXAONE 4": SmallOLMo(architecture="exaone4", ffn=100, seed=1),
    "EXAONE 4, windows": SmallOLMo(architecture="exaone4", blocks=5, window=5, tied=True, seed=2),
    "Seed-OSS": SmallQwen(architecture="seed_oss", head_dim=24, ffn=100, seed=3),
    "GLM 4": SmallGLM(biases=True, ffn=100),
    "Phi 3": SmallPhi(ffn=100),
    "Phi 3, long rope": SmallPhi(long=True, context=64, format="F16", seed=1),
    "Command R": SmallCommandR(ffn=100),
    "Command R+": SmallCommandR(head_norms=True, head_dim=24, format="F16", seed=2),
    "Command R7B": SmallCommandR(architecture="cohere2", blocks=5, ffn=100, seed=1),
    "ERNIE 4.5": SmallKin(architecture="ernie4_5", tied=True, head_dim=20, ffn=100),
    "ERNIE 4.5, experts": SmallMixture(
        architecture="ernie4_5-moe", blocks=3, leading=1, shared=64, ffn=100, tied=True, seed=7
    ),
    "Mixtral": SmallMixture(architecture="llama", width=44),
    "Qwen 2, experts": SmallMixture(architecture="qwen2moe", width=20, shared=52, seed=1),
    "Qwen 3, experts": SmallMixture(width=28, head_dim=24, seed=2),
    "Qwen 3, experts in every other block": SmallMixture(blocks=3, every=2, ffn=100, seed=6),
    "Qwen 3, groups of experts, a scale, F16": SmallMixture(
        experts=12, used=4, groups=4, kept=2, scale=1.5, format="F16", seed=3
    ),
    "DeepSeek-V2": SmallDeepSeek(ffn=100),
    "DeepSeek-V2 Lite, F16": SmallDeepSeek(
        q_rank=0, nope=16, turned=16, kv_rank=48, used=3, scale=2.5, tied=True, format="F16", seed=1
    ),
    "DeepSeek V3": SmallDeepSeek(
        experts=12, used=3, groups=3, kept=2, scale=2.5, shared=1, ffn=100, seed=2
    ),
    "DeepSeek-V2, keys and values of one tensor": SmallDeepSeek(joined=True, seed=3),
    "MiniCPM 3": SmallMiniCPM(ffn=100),
    "MiniCPM 3, long rope, tied, F16": SmallMiniCPM(
        long=True, nope=20, turned=12, context=64, tied=True, format="F16", seed=1
    ),
    "Qwen 3 VL, experts": SmallMixture(architecture="qwen3vlmoe", width=28, seed=8),
    "dots.llm1": SmallMixture(
        architecture="dots1",
        blocks=3,
        leading=1,
        kv_heads=4,
        shared=64,
        scale=2.5,
        sigmoid=True,
        ffn=100,
        seed=9,
    ),
    "MiniMax M2": SmallMixture(architecture="minimax-m2", sigmoid=True, ffn=100, seed=10),
    "Hunyuan, experts": SmallMixture(
        architecture="hunyuan-moe", width=28, shared=52, head_dim=24, tied=True, seed=4
    ),
    "GLM 4.5, experts": SmallGlmMoe(ffn=100),
    "GLM 4.5, no norms of heads, groups, F16": SmallGlmMoe(
        head_norms=False, experts=12, groups=4, kept=2, leading=2, format="F16", seed=1
    ),
    "OLMoE": SmallMixture(architecture="olmoe", experts=9, used=2, seed=4),
    "Granite, experts": SmallMixture(architecture="granitemoe", shared=40, seed=5),
    "gpt-oss": SmallGptOss(width=28, head_dim=24),
    "gpt-oss, a wide window, tied, F16": SmallGptOss(
        format="F16", window=40, tied=True, experts=8, used=4, seed=1
    ),
    "Gemma, wide heads": SmallGemma(head_dim=24, ffn=100),
    "Gemma, untied, F16": SmallGemma(tied=False, format="F16", seed=1),
    "Gemma 2": SmallGemma(architecture="gemma2", blocks=3, ffn=100, seed=2),
    "Gemma 2, no caps, another scale": SmallGemma(
        architecture="gemma2", caps=(0.0, 0.0), score_scale=0.5, kv_heads=1, seed=3
    ),
    "Gemma 3": SmallGemma(architecture="gemma3", blocks=7, head_dim=24, seed=4),
    "Gemma 4": SmallGemma4(ffn=100),
    "Gemma 4, no embeddings of blocks, keys alone, untied, F16": SmallGemma4(
        per_layer=0,
        shared=0,
        keys_alone=True,
        full_kv_heads=2,
        blocks=3,
        tied=False,
        format="F16",
        seed=1,
    ),
    "Gemma 4, experts": SmallGemma4(experts=6, blocks=3, shared=0, ffn=100, seed=2),
    "Gemma 4, experts, keys of others, F16": SmallGemma4(
        experts=9, used=3, width=44, per_layer=0, keys_alone=True, format="F16", seed=3
    ),
    "Gemma 3, no cap, untied, F16": SmallGemma(
        architecture="gemma3", blocks=6, caps=(0.0, 0.0), tied=False, format="F16", seed=5
    ),
}
QUANTISED = {
    f: tuple(
        small(format=f)
        for small in (
            SmallFalcon,
            SmallOPT,
            SmallQwen,
            SmallGemma,
            SmallNeoX,
            SmallGPT2,
            SmallMixture,
        )
    )
    for f in ("Q8_0", "Q4_0")
}
LENGTH = 19
each_subject = pytest.mark.parametrize("small", SUBJECTS.values(), ids=SUBJECTS)


def prompt(small: Subject) -> list[int]:
    return np.random.default_rng(small.seed).integers(0, small.vocab, LENGTH).tolist()


def exact(small: Subject, tokens: list[int], **how: Any) -> Array:
    weights, norms = small.tensors()
    return small.formula()(np.array(tokens, np.int32), weights, norms, small.shape(), **how)


def linear_of_either(x: Array, weight: Array, format: str) -> Array:
    """linear on int8 activations, unless the matrix is in F32, like a router's."""
    return (linear if format == "F32" else linear_of_quantised)(x, weight, format)


RANK = 8


def f32(values: Array) -> Weight:
    return Weight(np.ascontiguousarray(values, np.float32).view(np.uint8), "F32")


def sparse(small: Subject, path: Path) -> Path:
    """The model in PowerInfer's format (magic), with random predictors."""
    tampered(small, partial(with_predictors, small)).write(path)
    path.write_bytes(b"PWRI" + path.read_bytes()[4:])
    return path


def with_predictors(small: Subject, weights: dict[str, Weight], norms: dict[str, Array]) -> Tensors:
    rng = np.random.default_rng(small.seed)
    for i in range(small.blocks):
        block = f"blk.{i}"
        down = weights.pop(f"{block}.ffn_down.weight").data.view(np.float32)
        weights[f"{block}.ffn_down_t.weight"] = f32(down.T)
        weights[f"{block}.fc1.weight"] = f32(rng.standard_normal((RANK, small.hidden)))
        weights[f"{block}.fc2.weight"] = f32(rng.standard_normal((small.ffn, RANK)))
        if f"{block}.ffn_down.bias" in norms:
            norms[f"{block}.ffn_down_t.bias"] = norms.pop(f"{block}.ffn_down.bias")
    return weights, norms
