"""The sizes and constants of a model in the field's terms; engine/metadata has them of a file."""

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
    """How rotary frequencies are stretched: kind is none, linear or yarn. `magnitude` multiplies
    cosines and sines; YaRN's ramp begins and ends at whole pairs where it is `truncated`."""

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
    """Feed-forward networks of which a router chooses `used` of `count` for every token, each of
    width `ffn`; and one of width `shared` that every token meets, 0 where there is none, which a
    gate may weigh.

    `scores` and `normed` are Routing's, `scale` multiplies the weights; of `groups` of experts the
    `kept` best are chosen among. A block's gates and ups are one tensor where they are `joined`.
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
    """Sizes of latent attention: of the vector that queries come out of, 0 where there is none, of
    the one that keys and values come out of, and of each head's keys and values. The last elements
    of a key are turned, by `halves` or else neighbours, and all heads have them in common. What
    makes keys and values is one tensor where it is `joined`. `eps` is that of the vectors' norms.
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
    """How a model's feed-forward networks skip neurons.

    - `ranks`: of the predictors, by block; a block without one runs dense.
    - `threshold`: that a neuron's logit has to reach.
    - `union`: a neuron that one token of a step needs serves them all; else each its own.
    - `places`: by block, int32 [ffn]: 1 where a neuron lives on a GPU, 0 on the CPU; none: they are
      not split.
    - `apart`: each neuron is computed where it lives; else the CPU computes either part.
    """

    ranks: Mapping[int, int]
    threshold: float = 0.0
    union: bool = False
    places: Mapping[int, np.ndarray[Any, np.dtype[np.int32]]] = field(default_factory=dict)
    apart: bool = False

    def without(self, blocks: set[int]) -> "Sparsity":
        """The same, these blocks run dense."""
        return replace(self, ranks={i: r for i, r in self.ranks.items() if i not in blocks})


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The sizes and constants of a model.

    `activation` is the op of its feed-forward networks, whose ffn_down a file may hold transposed,
    and which skip neurons where there is a `sparsity`. `positions` is how many it has learned, 0
    where they are rotary. `window` is how many tokens attention may reach back in the blocks that
    are `windowed`, itself included, 0 where it reaches all. Queries, keys and values are rows of
    one tensor of each block where they are `fused_qkv`; attention and the feed-forward network both
    read the block's input where they are `parallel`, in the families that have either order. The
    least slope of `alibi` is 2^-alibi, or about that where heads are no power of two; 0: attention
    has no slopes. Every `no_rope`-th block turns nothing by its position, if that is not 0, nor do
    those without a window where `windows_turn`. `window_base` is the base of rope in blocks with a
    window, 0 where it is that of the others. Blocks that are `recurrent` do not attend, and have
    states of `ssm`'s sizes; where all are, there are no heads. Where there is a `latent` its vector
    and what is turned are a cell's one key, of `head_dim`. Of a mixture some blocks may be `dense`.
    Blocks may have `sizes` of their own, and tokens an embedding of `per_layer` elements
    for every block. Scores are multiplied by
    `score_scale`; caps are 0 where there are none. Behind its blocks a file may have `further` ones
    that foretell more tokens, which serve drafts alone (models/further.py). Queries are times 1 +
    `temperature` * ln(1 + n), n being how many first contexts their position is behind.
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
    windows_turn: bool = False
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
    further: int = 0
    sizes: tuple[OfBlock, ...] = ()
    per_layer: int = 0
    temperature: float = 0.0

    def check(self) -> None:
        """ModelError for sizes that do not go together."""
        if self.alibi < 0:
            raise ModelError(f"attention.max_alibi_bias must be at least 0, got {self.alibi}")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ModelError(
                f"attention.head_count {self.heads} is no multiple of head_count_kv {self.kv_heads}"
            )
        if self.activation == "swiglu_oai" and not self.experts:
            raise ModelError(f"{self.architecture}.expert_count is 0: its networks are mixtures")
        if self.rope_dims % 2 or self.rope_dims > self.head_dim:
            raise ModelError(
                f"rope.dimension_count is even and at most {self.head_dim}, got {self.rope_dims}"
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
                f"{self.architecture}: of latent attention attention.head_count_kv is 1, and"
                f" attention.key_length kv_lora_rank and rope.dimension_count together"
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
        if low > high:  # which transformers and llama.cpp take differently
            raise ModelError(
                f"rope.scaling: with yarn_beta_fast {fast:g}, yarn_beta_slow {slow:g} and an"
                f" original context of {context} YaRN's ramp ends before it begins"
            )

    def of_block(self, i: int) -> "ModelConfig":
        """The same with block i's sizes, where blocks have their own."""
        if not self.sizes:
            return self
        own = self.sizes[i]
        return replace(self, kv_heads=own.kv_heads, head_dim=own.head_dim, ffn=own.ffn)

    def routes(self, i: int) -> bool:
        """Whether block i's network is a mixture of experts."""
        return bool(self.experts) and i not in self.dense

    def kept(self, i: int) -> int:
        """The block whose keys and values block i reads."""
        return self.sizes[i].kept if self.sizes else i

    def cell(self, i: int) -> int:
        """Elements of block i's keys in a cell; 0 where it has none of its own."""
        own = self.of_block(i)
        return own.kv_heads * own.head_dim if self.attends(i) and self.kept(i) == i else 0

    def attends(self, i: int) -> bool:
        """Whether block i has keys and values, not states."""
        return i not in self.recurrent

    def states_of(self, i: int) -> dict[str, tuple[int, ...]]:
        """Block i's states, by name, with the dimensions of one."""
        if i not in self.recurrent:
            return {}
        assert self.ssm
        return states_of_block(self.architecture, self.ssm, i)

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """Those of all blocks."""
        return {n: dims for i in sorted(self.recurrent) for n, dims in self.states_of(i).items()}

    def turns(self, i: int) -> bool:
        """Whether rope turns the queries and keys of block i."""
        if self.windows_turn:
            return i in self.windowed
        return not self.no_rope or (i + 1) % self.no_rope != 0

    def rope_set(self, context: int) -> str:
        """Which set of divisors long rope has for a context of so many cells."""
        return "long" if context > self.first_context else "short"

    @property
    def first_context(self) -> int:
        """The context that the model was first trained for."""
        return self.rope_scaling.original_context or self.context

    def rope(self, divisors: np.ndarray[Any, Any] | None) -> tuple[np.ndarray[Any, Any], float]:
        """Rotary frequencies float64 [rope_dims / 2] and the magnitude of cosines and sines.

        `divisors` are the file's, if it has a tensor of them.
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
