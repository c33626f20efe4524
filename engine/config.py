"""What a GGUF file says of its model, checked and in the field's terms."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.architectures import ARCHITECTURES, Routing, Traits
from engine.blocks import OfBlock, sizes_of
from engine.errors import ModelError as ModelError
from engine.keys import Keys
from engine.missing import MISSING
from engine.recurrent import Ssm
from engine.recurrent import states as states_of_block
from engine.unused import unused_key
from reference import rope_frequencies
from reference.models.transformer import Scales

MOST_BLOCKS = 2**16  # of which each is told whether it has a window


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
    and what is turned are a cell's one key, of `head_dim`. The first `leading` blocks have no
    experts. Blocks may have `sizes` of their own, and tokens an embedding of `per_layer` elements
    for every block. Scores are multiplied by
    `score_scale`; caps are 0 where there are none. Behind its blocks a file may have `further` ones
    that foretell more tokens, which serve drafts alone (models/further.py).
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
    leading: int = 0
    latent: Latent | None = None
    further: int = 0
    sizes: tuple[OfBlock, ...] = ()
    per_layer: int = 0

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], vocab: int) -> "ModelConfig":
        """`vocab` is the number of rows of the token embedding."""
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
            op = MISSING.get(str(architecture))
            why = f"which is missing {op}" if op else f"not one of {', '.join(ARCHITECTURES)}"
            raise ModelError(f"general.architecture is {architecture!r}, {why}")
        keys, traits = Keys(metadata, architecture), ARCHITECTURES[architecture]
        unused = traits.no_position or 0
        context = keys.count("context_length", least=unused + 1) - unused
        least = 0 if traits.ssm else 1
        heads = keys.count("attention.head_count", least=least)
        further = keys.count("nextn_predict_layers", 0, least=0) if traits.further else 0
        blocks = keys.count("block_count", least=further + 1) - further
        hidden = keys.count("embedding_length")
        if not traits.ssm and hidden % heads and keys.full("attention.key_length") not in metadata:
            raise ModelError(
                f"{architecture}.embedding_length {hidden} is no multiple of"
                f" attention.head_count {heads}, and attention.key_length is missing"
            )
        head_dim = 0 if traits.ssm else keys.count("attention.key_length", hidden // heads)
        recurrent = _recurrent(keys, traits, blocks, further)
        some = int(traits.window is None)
        window = keys.count("attention.sliding_window", traits.window, least=some)
        windowed = _windowed(keys, traits.windows, blocks) if window else frozenset()
        sizes = sizes_of(keys, blocks, heads, head_dim, windowed) if traits.by_block else ()
        if sizes:
            kv_heads = sizes[0].kv_heads
        else:
            kv_heads = keys.agreed("attention.head_count_kv", heads, least, without=recurrent)
        latent, value = None, head_dim
        if traits.latent:
            latent = _latent(keys, traits, head_dim, hidden // heads)
            value = latent.value if latent.joined else latent.kv_rank
            if latent.joined:
                if kv_heads != heads:
                    name = keys.full("attention.head_count_kv")
                    raise ModelError(f"{name} is {kv_heads}: all {heads} heads have keys here")
                kv_heads, head_dim = 1, latent.kv_rank + keys.count("rope.dimension_count")
        if head_dim and keys.count("attention.value_length", value) != value:
            other = "kv_lora_rank" if latent else "key_length"
            raise ModelError(f"{architecture}.attention.value_length differs from {other}")
        if not keys.flag("attention.causal", True):
            raise ModelError(f"{architecture}.attention.causal is false: only causal models run")
        no_rope = traits.no_rope
        if architecture == "granite" and not keys.flag("rope.scaling.finetuned", True):
            no_rope = 1  # its word for no rope at all
        # in mixtures of these nothing has that width
        none = 0 if traits.delta and traits.experts else None
        if sizes:
            ffn = sizes[0].ffn
        else:
            ffn = keys.count("feed_forward_length", none, least if none is None else 0)
        rope_base = keys.real("rope.freq_base", 10000.0)
        window_base = rope_base if traits.unscaled else traits.window_base
        of_states = traits.ssm or traits.shortconv or traits.delta
        scales = _scales(keys, traits, hidden, blocks)
        width = (latent.key if latent else head_dim) or 1
        width = 1 if sizes else width
        scaling = _rope_scaling(keys)
        if blocks == traits.by_width:
            width = max(1, hidden // heads)
        config = cls(
            architecture=architecture,
            name=str(metadata.get("general.name", "")),
            context=context,
            hidden=hidden,
            blocks=blocks,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            ffn=ffn,
            vocab=vocab,
            norm_eps=keys.real(*traits.norm_eps),
            activation=keys.one_of("hidden_activation", traits.activations),
            positions=0 if traits.no_position is None else context,
            rope_dims=keys.count("rope.dimension_count", head_dim, least),
            rope_base=rope_base,
            rope_scaling=_without_magnitude(keys, scaling) if latent else scaling,
            fused_qkv=traits.fused_qkv,
            alibi=traits.alibi and keys.real("attention.max_alibi_bias", traits.alibi),
            parallel=traits.two_orders and keys.flag("use_parallel_residual", True),
            no_rope=no_rope,
            windows_turn=traits.windows_turn,
            scales=scales,
            score_scale=scales.attention or width**-0.5 * _steepness(keys, latent, scaling),
            score_cap=keys.least("attn_logit_softcapping", traits.score_cap),
            logit_cap=keys.least("final_logit_softcapping", traits.logit_cap),
            window=window if windowed else 0,
            windowed=windowed,
            window_base=keys.least("rope.freq_base_swa", window_base) if windowed else 0.0,
            ssm=_ssm(keys, traits, hidden) if of_states else None,
            recurrent=recurrent,
            experts=_experts(keys, traits.experts, ffn),
            leading=_leading(keys, traits.experts),
            latent=latent,
            further=further,
            sizes=sizes,
            per_layer=_per_layer(keys) if sizes else 0,
        )
        config._check()
        if traits.delta:
            _check_sections(keys, config.rope_dims // 2)
        if fault := unused_key(metadata, architecture, keys.read):
            raise ModelError(fault)
        return config

    def _check(self) -> None:
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
        context = scaling.original_context or self.context
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
        return "long" if context > (self.rope_scaling.original_context or self.context) else "short"

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
                scaling.original_context or self.context,
                extrapolation=scaling.extrapolation,
                beta_fast=scaling.beta_fast,
                beta_slow=scaling.beta_slow,
                truncated=scaling.truncated,
            )
        elif scaling.kind == "linear":
            frequencies = rope_frequencies.interpolated(frequencies, scaling.factor)
        return frequencies, scaling.magnitude


def _latent(keys: Keys, traits: Traits, head_dim: int, part: int) -> Latent:
    """Sizes as files have them whose kv_b is split in k_b and v_b, or is one tensor, as llama.cpp
    writes MiniCPM 3 and wrote DeepSeek until April 2025: then keys of so many elements are heads'.
    Values of a `part` of the hidden size are meant where there is no word of them."""
    joined = keys.full("attention.key_length_mla") not in keys.metadata
    apart = "" if joined else "_mla"
    found = Latent(
        q_rank=keys.count("attention.q_lora_rank", 0, least=0),
        kv_rank=keys.count("attention.kv_lora_rank"),
        key=head_dim if joined else keys.count("attention.key_length_mla"),
        value=keys.count(f"attention.value_length{apart}", part if joined else None),
        joined=joined,
        halves=traits.halves,
        eps=traits.latent_eps or keys.real(*traits.norm_eps),
    )
    turned = keys.count("rope.dimension_count") if joined else head_dim - found.kv_rank
    other = f"dimension_count of {turned}" if joined else f"key_length_mla of {found.key}"
    if found.kv_rank % 2:  # rope turns pairs of the elements behind it
        name = keys.full("attention.kv_lora_rank")
        raise ModelError(f"{name} is {found.kv_rank}: want an even number")
    if not 0 < turned < found.key:
        raise ModelError(
            f"{keys.prefix}.attention: a kv_lora_rank of {found.kv_rank}, a key_length of"
            f" {head_dim} and a {other} do not fit one another"
        )
    return found


def _without_magnitude(keys: Keys, scaling: RopeScaling) -> RopeScaling:
    """Of latent attention, whose vectors cosines and sines leave as they are; YaRN's is that of
    scores."""
    if scaling.kind != "yarn" and scaling.magnitude != 1:
        name = keys.full("rope.scaling.attn_factor")
        raise ModelError(f"{name} is {scaling.magnitude}: latent attention here has none but 1")
    return replace(scaling, magnitude=1.0)


def _steepness(keys: Keys, latent: Latent | None, scaling: RopeScaling) -> float:
    """What YaRN makes of the scores of latent attention, in place of cosines and sines: the square
    of 1 + m ln(factor), where m is a tenth of transformers' mscale_all_dim."""
    if not latent or scaling.kind != "yarn" or scaling.factor <= 1:
        return 1.0
    m = keys.real("rope.scaling.yarn_log_multiplier", 0.0)
    return float(1 + m * np.log(scaling.factor)) ** 2


def _ssm(keys: Keys, traits: Traits, hidden: int) -> Ssm:
    """The sizes of recurrent blocks: heads divide the channels, and groups divide the heads."""
    if traits.shortconv:
        return Ssm(taps=keys.count("shortconv.l_cache", least=2), inner=hidden)
    found = Ssm(
        taps=keys.count("ssm.conv_kernel", least=2),
        inner=keys.count("ssm.inner_size"),
        state=keys.count("ssm.state_size"),
        rank=keys.count("ssm.time_step_rank"),
        groups=keys.count("ssm.group_count", 1),
    )
    if keys.prefix != "mamba" and (found.inner % found.rank or found.rank % found.groups):
        raise ModelError(
            f"{keys.full('ssm')}: {found.inner} channels, {found.rank} heads and {found.groups}"
            " groups: heads divide channels, and groups divide heads"
        )
    if traits.delta and found.inner != found.rank * found.state:
        raise ModelError(
            f"{keys.full('ssm.inner_size')} is {found.inner}: want {found.rank} heads of state_size"
            f" {found.state}"
        )
    if keys.prefix == "mamba" and keys.flag("ssm.dt_b_c_rms", False):
        raise ModelError("mamba.ssm.dt_b_c_rms is true: norms of dt, B and C are not supported")
    return found


def _recurrent(keys: Keys, traits: Traits, blocks: int, further: int) -> frozenset[int]:
    """Blocks that have states."""
    if traits.ssm:
        return _every(keys, blocks)
    return _delta_nets(keys, blocks, further) if traits.delta else _convolving(keys, traits, blocks)


def _delta_nets(keys: Keys, blocks: int, further: int) -> frozenset[int]:
    """By a list with a word on each block, or all but every so many-th."""
    every = keys.count("full_attention_interval", 4)
    listed = keys.flags("attention.recurrent_layers", blocks + further)
    if listed is not None:
        return frozenset(i for i in range(blocks) if listed[i])
    return frozenset(i for i in _every(keys, blocks) if (i + 1) % every)


def _check_sections(keys: Keys, pairs: int) -> None:
    """Text has one position in all three dimensions of an image's; which of them turns a pair does
    not matter then, but one has to: what is left to a fourth is not turned (llama.cpp's order)."""
    key = "rope.dimension_sections"
    sections = keys.metadata.get(keys.full(key))
    if sections is None:
        return
    keys.read.add(keys.full(key))
    told = sections if isinstance(sections, list) else []
    sizes = [size for size in told if isinstance(size, int) and size >= 0]
    every = range(min(pairs, sum(sizes))) if len(sizes) == len(told) > 2 else range(0)
    if not every or any(pair >= 3 * sizes[pair % 3] for pair in every):
        raise ModelError(
            f"{keys.full(key)} is {sections!r:.40}: want three dimensions that turn {pairs} pairs"
        )


def _convolving(keys: Keys, traits: Traits, blocks: int) -> frozenset[int]:
    """Blocks that have no heads of keys, in families where those are convolutions."""
    key = "attention.head_count_kv"
    heads = keys.metadata.get(keys.full(key))
    if not traits.shortconv or not isinstance(heads, list):
        return frozenset()
    if len(heads) != blocks:
        raise ModelError(f"{keys.full(key)} has {len(heads)} values for {blocks} blocks")
    return frozenset(i for i, count in enumerate(heads) if count == 0)


def _every(keys: Keys, blocks: int) -> frozenset[int]:
    """All blocks."""
    if blocks > MOST_BLOCKS:
        raise ModelError(f"{keys.full('block_count')} is {blocks}: at most {MOST_BLOCKS} run")
    return frozenset(range(blocks))


def _scales(keys: Keys, traits: Traits, hidden: int, blocks: int) -> Scales:
    """Those that the family has and the file tells, or MiniCPM 3's; 0 is none."""
    usual = {
        "embedding_scale": 12.0,
        "residual_scale": 1.4 / blocks**0.5,
        "logit_scale": hidden / 256,
    }
    found = {key: keys.least(key, traits.mup * usual.get(key, 0.0)) for key in traits.scales}
    logits = found.get("logit_scale") or 1.0
    return Scales(
        embedding=found.get("embedding_scale") or 1.0,
        residual=found.get("residual_scale") or 1.0,
        attention=found.get("attention.scale") or None,
        logits=1 / logits if traits.divides else logits,
    )


def _per_layer(keys: Keys) -> int:
    """Elements of a token's embedding for each block, 0 where there is none."""
    return keys.count("embedding_length_per_layer_input", 0, least=0)


def _leading(keys: Keys, routing: Routing | None) -> int:
    """How many of the first blocks have no experts."""
    counted = routing and routing.counted
    return keys.count("leading_dense_block_count", 0, least=0) if counted else 0


GATING = {1: "softmax", 2: "sigmoid", 3: ""}  # llama.cpp's numbers, by Routing.scores


def _experts(keys: Keys, routing: Routing | None, ffn: int) -> Experts | None:
    """What the file says of its mixtures, or None where its networks are dense."""
    count = keys.count("expert_count", 0, least=0)
    if not count:
        return None
    if routing is None:
        raise ModelError(f"{keys.full('expert_count')}: mixtures of experts are not supported")
    used = keys.count("expert_used_count")
    width = max(1, ffn // used) if routing.part else ffn
    width = keys.count("expert_feed_forward_length", width, least=0) or width
    default = ffn if routing.gated else 0
    if routing.counted:
        default = width * keys.count("expert_shared_count", 0, least=0)
    shared = keys.count("expert_shared_feed_forward_length", default, least=0)
    usual = next(number for number, name in GATING.items() if name == routing.scores)
    gating = keys.count("expert_gating_func", usual, least=0) or usual
    if gating not in GATING:
        raise ModelError(
            f"{keys.full('expert_gating_func')} is {gating}:"
            " want 1 (softmax), 2 (sigmoid) or 3 (softmax of the chosen)"
        )
    found = Experts(
        count=count,
        used=used,
        ffn=width,
        scores=GATING[gating],
        normed=keys.flag("expert_weights_norm", routing.normed),
        scale=keys.real("expert_weights_scale", 1.0) or 1.0,
        groups=keys.count("expert_group_count", 1, least=0) or 1,
        kept=keys.count("expert_group_used_count", 1, least=0) or 1,
        shared=shared,
        shared_gate=routing.gated and shared > 0,
    )
    if used > count:
        raise ModelError(f"{keys.full('expert_used_count')} is {used}, of {count} experts")
    if found.scores == routing.lone and found.kept < found.groups:
        raise ModelError(
            f"{keys.full('expert_group_count')} is {found.groups}: groups of {found.scores} scores,"
            " each of which goes by its best expert, are not supported"
        )
    if count % found.groups or found.kept > found.groups:
        raise ModelError(
            f"{keys.full('expert_group_count')} {found.groups}, of which {found.kept} are used,"
            f" does not divide {count} experts"
        )
    if used > found.kept * (count // found.groups):
        raise ModelError(
            f"{keys.full('expert_used_count')} is {used}, more than {found.kept} groups have"
        )
    return found


def _windowed(keys: Keys, every: int, blocks: int) -> frozenset[int]:
    """The blocks that have a window: by a list with a word on each, or as Traits.windows says."""
    if blocks > MOST_BLOCKS:
        raise ModelError(f"{keys.full('block_count')} is {blocks}: at most {MOST_BLOCKS} run")
    listed = keys.flags("attention.sliding_window_pattern", blocks)
    if listed is not None:
        return frozenset(i for i, has in enumerate(listed) if has)
    every = keys.count("attention.sliding_window_pattern", every, least=0)
    return frozenset(i for i in range(blocks) if not every or (i + 1) % every)


def _rope_scaling(keys: Keys) -> RopeScaling:
    legacy = keys.real("rope.scale_linear", 0.0)
    factor = keys.real("rope.scaling.factor", legacy or 1.0)
    kind = keys.text("rope.scaling.type", "linear" if factor not in (0.0, 1.0) else "none")
    if kind not in ("none", "linear", "yarn"):
        raise ModelError(f"{keys.full('rope.scaling.type')} is {kind!r}: want none, linear or yarn")
    if kind != "none" and factor <= 0:
        raise ModelError(f"{keys.full('rope.scaling.factor')} must be positive, got {factor}")
    betas = {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}
    for key, default in betas.items():
        betas[key] = keys.real(f"rope.scaling.{key}", default)
        if kind == "yarn" and betas[key] <= 0:
            raise ModelError(
                f"{keys.full('rope.scaling.' + key)} must be positive, got {betas[key]}"
            )
    extrapolation = keys.real("rope.scaling.yarn_ext_factor", 1.0)
    if kind == "yarn" and extrapolation == 0:
        raise ModelError(
            f"{keys.full('rope.scaling.yarn_ext_factor')} is 0: to interpolate all dimensions,"
            " rope.scaling.type is linear"
        )
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_context=keys.count("rope.scaling.original_context_length", 0, least=0),
        magnitude=_magnitude(keys, factor, kind, extrapolation),
        extrapolation=1.0 if extrapolation < 0 else extrapolation,
        beta_fast=betas["yarn_beta_fast"],
        beta_slow=betas["yarn_beta_slow"],
        truncated=keys.flag("rope.scaling.yarn_truncate", True),
    )


def _magnitude(keys: Keys, factor: float, kind: str, extrapolation: float) -> float:
    """Of cosines and sines (docs/decisions/031-yarn-keys.md).

    attn_factor           multiplies what YaRN has by itself, and without YaRN is alone
    yarn_attn_factor      is in its place: transformers' attention_factor
    yarn_log_multiplier   divides it by that of another scale: transformers' mscale_all_dim
    """
    times = keys.real("rope.scaling.attn_factor", 1.0)
    told = keys.real("rope.scaling.yarn_attn_factor", 0.0)
    scale = keys.real("rope.scaling.yarn_log_multiplier", 0.0)
    if scale < 0:
        name = keys.full("rope.scaling.yarn_log_multiplier")
        raise ModelError(f"{name} must be at least 0, got {scale}")
    if kind != "yarn":
        return times
    if told and extrapolation >= 0:  # below 0 llama.cpp saved numbers of its own, none of them told
        return told * times
    yarn_magnitude = rope_frequencies.yarn_magnitude
    return yarn_magnitude(factor) / yarn_magnitude(factor, scale) * times
