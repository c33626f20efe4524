"""Hyperparameters of a model; engine/metadata reads them from a GGUF file."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.errors import ModelError as ModelError
from engine.metadata.architectures import ARCHITECTURES
from engine.metadata.sizes import OfBlock
from engine.recurrent import Ssm
from engine.recurrent import states as states_of_block
from reference import rope_frequencies
from reference.models.transformer import Scales


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """RoPE scaling: kind is none, linear or yarn. `magnitude` multiplies cosines and sines;
    YaRN's ramp is rounded to whole dimension pairs where `truncated`."""

    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    magnitude: float = 1.0
    extrapolation: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncated: bool = True


@dataclass(frozen=True, slots=True)
class Experts:
    """Mixture of experts: a router selects `used` of `count` experts of width `ffn` per token, plus
    a shared expert of width `shared` (0: none), weighted by a gate where `shared_gate`.

    `scores` and `normed` are the Routing op's; `scale` multiplies the weights. Experts are selected
    among the `kept` best of `groups` groups. Gate and up are one tensor where `joined`.
    """

    count: int
    used: int
    ffn: int
    scores: str
    normed: bool
    scale: float = 1.0
    groups: int = 1
    kept: int = 1
    shared: int = 0
    shared_gate: bool = False
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (MLA): ranks of the query (0: not compressed) and KV latents, and
    dimensions of each head's keys and values. RoPE applies to the last elements of a key, which all
    heads share, pairing `halves` or else neighbours. `joined`: kv_b is one tensor. `eps` is that of
    the latents' norms.
    """

    q_rank: int
    kv_rank: int
    key: int
    value: int
    joined: bool
    halves: bool
    eps: float


@dataclass(frozen=True, slots=True)
class Sparsity:
    """Sparsity of feed-forward networks (PowerInfer).

    - `ranks`: the predictors' ranks by block; a block without one runs dense.
    - `threshold`: a neuron is active if its predictor's logit reaches this.
    - `union`: a neuron active for one token of a step is computed for all; else for each its own.
    - `places`: by block, int32 [ffn]: 1 for neurons on the GPU, 0 for the CPU; empty: no split.
    - `apart`: each device computes its own neurons; else the CPU computes both parts.
    """

    ranks: Mapping[int, int]
    threshold: float = 0.0
    union: bool = False
    places: Mapping[int, np.ndarray[Any, np.dtype[np.int32]]] = field(default_factory=dict)
    apart: bool = False

    def without(self, blocks: set[int]) -> "Sparsity":
        """Returns a copy in which these blocks run dense."""
        return replace(self, ranks={i: r for i, r in self.ranks.items() if i not in blocks})


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Hyperparameters of a model.

    - `activation`: op of the feed-forward networks; `transposed_down`: the file has ffn_down_t.
    - `positions`: number of learned positions, 0 for rotary ones.
    - `window`: sliding-window size of the `windowed` blocks, the token itself included; 0: full.
      `window_base`: their RoPE base, 0: that of the others.
    - `fused_qkv`: Q, K and V are one tensor. `parallel`: attention and feed-forward network read
      the same input, in families that have either order.
    - `alibi`: the least slope is 2^-alibi (or near it, if heads are not a power of two); 0: none.
    - `no_rope`: every n-th block has no RoPE; 0: all do. `windows_rotate`: only windowed blocks do.
    - `recurrent`: blocks with states of `ssm`'s sizes instead of attention; if all are, heads is 0.
    - `latent`: MLA; the latent and the rotated part are the cell's one key, of `head_dim`.
    - `dense`: blocks of a mixture without experts. `sizes`: per-block sizes, if they differ.
    - `per_layer`: elements of per-layer embeddings. `score_scale` multiplies attention scores; caps
      of 0 are off.
    - `mtp_blocks`: multi-token prediction blocks after the others, for drafts.
    - `temperature`: queries are scaled by 1 + temperature * ln(1 + n), n being how many times the
      original context their position is beyond it.
    """

    architecture: str
    name: str
    context: int
    hidden: int
    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    norm_eps: float
    activation: str
    positions: int
    rope_dims: int
    rope_base: float
    rope_scaling: RopeScaling
    score_scale: float
    score_cap: float = 0.0
    logit_cap: float = 0.0
    window: int = 0
    fused_qkv: bool = False
    parallel: bool = False
    alibi: float = 0.0
    no_rope: int = 0
    windows_rotate: bool = False
    scales: Scales = field(default_factory=Scales)
    windowed: frozenset[int] = frozenset()
    window_base: float = 0.0
    transposed_down: bool = False
    sparsity: Sparsity | None = None
    ssm: Ssm | None = None
    recurrent: frozenset[int] = frozenset()
    experts: Experts | None = None
    dense: frozenset[int] = frozenset()
    latent: Latent | None = None
    mtp_blocks: int = 0
    sizes: tuple[OfBlock, ...] = ()
    per_layer: int = 0
    temperature: float = 0.0

    def check(self) -> None:
        """Raise `ModelError` for inconsistent sizes."""
        if self.alibi < 0:
            raise ModelError(f"attention.max_alibi_bias must be at least 0, got {self.alibi}")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ModelError(
                f"attention.head_count {self.heads} is no multiple of head_count_kv {self.kv_heads}"
            )
        if self.activation == "swiglu_oai" and not self.experts:
            raise ModelError(f"{self.architecture}.expert_count is 0: swiglu_oai needs experts")
        if self.rope_dims % 2 or self.rope_dims > self.head_dim:
            raise ModelError(
                f"rope.dimension_count must be even and at most {self.head_dim},"
                f" got {self.rope_dims}"
            )
        if self.temperature and self.rope_dims != self.head_dim:
            raise ModelError(
                f"attention.temperature_scale: rope.dimension_count is {self.rope_dims}, and only"
                f" what turns, of {self.head_dim} elements of a head, would have a temperature"
            )
        if self.latent and (
            self.kv_heads != 1 or self.head_dim != self.latent.kv_rank + self.rope_dims
        ):
            raise ModelError(
                f"{self.architecture}: MLA needs attention.head_count_kv = 1 and"
                f" attention.key_length = kv_lora_rank + rope.dimension_count"
            )
        if self.norm_eps < 0 or self.rope_base <= 0:
            eps = ARCHITECTURES[self.architecture].norm_eps[0].removeprefix("attention.")
            raise ModelError(
                f"{eps} {self.norm_eps} and rope.freq_base {self.rope_base} must be positive"
            )
        if self.rope_scaling.kind == "yarn":
            self._check_yarn(self.rope_scaling)

    def _check_yarn(self, scaling: RopeScaling) -> None:
        if self.rope_base <= 1:
            raise ModelError(f"rope.freq_base must exceed 1 for yarn, got {self.rope_base}")
        fast, slow = scaling.beta_fast, scaling.beta_slow
        context = self.first_context
        low, high = rope_frequencies.yarn_range(
            self.rope_dims, self.rope_base, context, fast, slow, scaling.truncated
        )
        if low > high:  # transformers and llama.cpp differ here
            raise ModelError(
                f"rope.scaling: with yarn_beta_fast {fast:g}, yarn_beta_slow {slow:g} and an"
                f" original context of {context} YaRN's ramp ends before it begins"
            )

    def of_block(self, i: int) -> "ModelConfig":
        """Returns the config with block i's sizes, where blocks have their own."""
        if not self.sizes:
            return self
        own = self.sizes[i]
        return replace(self, kv_heads=own.kv_heads, head_dim=own.head_dim, ffn=own.ffn)

    def is_mixture(self, i: int) -> bool:
        """Whether block i is a mixture of experts."""
        return bool(self.experts) and i not in self.dense

    def cache_block(self, i: int) -> int:
        """Index of the block whose KV cache block i reads."""
        return self.sizes[i].kept if self.sizes else i

    def cell_width(self, i: int) -> int:
        """Elements of block i's key in a cache cell; 0 if the block has no cache of its own."""
        own = self.of_block(i)
        return (
            own.kv_heads * own.head_dim if self.has_attention(i) and self.cache_block(i) == i else 0
        )

    def has_attention(self, i: int) -> bool:
        """Whether block i is an attention block, not a recurrent one."""
        return i not in self.recurrent

    def states_of(self, i: int) -> dict[str, tuple[int, ...]]:
        """Shapes of block i's recurrent states, by name."""
        if i not in self.recurrent:
            return {}
        assert self.ssm
        return states_of_block(self.architecture, self.ssm, i)

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all blocks' recurrent states, by name."""
        return {n: dims for i in sorted(self.recurrent) for n, dims in self.states_of(i).items()}

    def has_rope(self, i: int) -> bool:
        """Whether block i applies RoPE."""
        if self.windows_rotate:
            return i in self.windowed
        return not self.no_rope or (i + 1) % self.no_rope != 0

    def rope_factor_set(self, context: int) -> str:
        """The set of LongRoPE factors for this context length: "long" or "short"."""
        return "long" if context > self.first_context else "short"

    @property
    def first_context(self) -> int:
        """The context that the model was first trained for."""
        return self.rope_scaling.original_context or self.context

    def rope(self, divisors: np.ndarray[Any, Any] | None) -> tuple[np.ndarray[Any, Any], float]:
        """RoPE frequencies float64 [rope_dims / 2], and the magnitude of cosines and sines.

        `divisors` are the file's RoPE factors, if it has them.
        """
        scaling = self.rope_scaling
        frequencies = rope_frequencies.plain(self.rope_dims, self.rope_base)
        if divisors is not None:
            frequencies = rope_frequencies.divided(frequencies, divisors.astype(np.float64))
        if scaling.kind == "yarn":
            frequencies = rope_frequencies.yarn(
                frequencies,
                self.rope_base,
                scaling.factor,
                self.first_context,
                extrapolation=scaling.extrapolation,
                beta_fast=scaling.beta_fast,
                beta_slow=scaling.beta_slow,
                truncated=scaling.truncated,
            )
        elif scaling.kind == "linear":
            frequencies = rope_frequencies.interpolated(frequencies, scaling.factor)
        return frequencies, scaling.magnitude
