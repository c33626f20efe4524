"""What a GGUF file says of its model, checked and in the field's terms."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine.unused import unused_key
from reference import rope_frequencies
from reference.opt import UNUSED


@dataclass(frozen=True, slots=True)
class Traits:
    """What the name of an architecture says.

    activations   the op of the feed-forward network by what the key hidden_activation calls it;
                  the first is meant where that key is missing
    norm_eps      the key of its norms' eps, and the value where that is missing, if there is one
    no_position   rows of a table of learned positions before that of position 0; None: rotary
    """

    activations: Mapping[str, str]
    norm_eps: tuple[str, float | None] = ("attention.layer_norm_epsilon", None)
    no_position: int | None = None


GELU = {"gelu": "gelu_erf", "gelu_pytorch_tanh": "gelu"}
RMS_EPS = ("attention.layer_norm_rms_epsilon", None)
ARCHITECTURES: Mapping[str, Traits] = {
    "llama": Traits(activations={"silu": "swiglu", "relu": "reglu"}, norm_eps=RMS_EPS),
    "bamboo": Traits(activations={"relu": "drelu"}, norm_eps=RMS_EPS),  # arXiv 2406.05955
    "falcon": Traits(activations=GELU | {"relu": "relu"}),
    # PowerInfer, whose architecture it is, writes no eps
    "opt": Traits(
        activations={"relu": "relu"} | GELU,
        norm_eps=("attention.layer_norm_epsilon", 1e-5),
        no_position=UNUSED,
    ),
}


class ModelError(ValueError):
    """A model that this engine cannot run: one line that says what and where."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched: kind is none, linear or yarn. `magnitude` multiplies
    cosines and sines."""

    kind: str = "none"
    factor: float = 1.0
    original_context: int = 0
    magnitude: float = 1.0
    extrapolation: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


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
    where they are rotary. `window` is how many tokens attention may reach back, itself included, 0
    where it reaches all.
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
    window: int = 0
    transposed_down: bool = False
    sparsity: Sparsity | None = None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any], vocab: int) -> "ModelConfig":
        """`vocab` is the number of rows of the token embedding."""
        architecture = metadata.get("general.architecture")
        if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise ModelError(f"general.architecture is {architecture!r}; this engine runs {known}")
        keys, traits = _Keys(metadata, architecture), ARCHITECTURES[architecture]
        unused = traits.no_position or 0
        context = keys.count("context_length", least=unused + 1) - unused
        heads = keys.count("attention.head_count")
        hidden = keys.count("embedding_length")
        if hidden % heads and keys.full("attention.key_length") not in metadata:
            raise ModelError(
                f"{architecture}.embedding_length {hidden} is no multiple of"
                f" attention.head_count {heads}, and attention.key_length is missing"
            )
        head_dim = keys.count("attention.key_length", hidden // heads)
        if keys.count("attention.value_length", head_dim) != head_dim:
            raise ModelError(f"{architecture}.attention.value_length differs from key_length")
        if keys.count("expert_count", 0, least=0):
            raise ModelError(f"{architecture}.expert_count: mixtures of experts are not supported")
        if not keys.flag("attention.causal", True):
            raise ModelError(f"{architecture}.attention.causal is false: only causal models run")
        config = cls(
            architecture=architecture,
            name=str(metadata.get("general.name", "")),
            context=context,
            hidden=hidden,
            blocks=keys.count("block_count"),
            heads=heads,
            kv_heads=keys.count("attention.head_count_kv", heads),
            head_dim=head_dim,
            ffn=keys.count("feed_forward_length"),
            vocab=vocab,
            norm_eps=keys.real(*traits.norm_eps),
            activation=keys.one_of("hidden_activation", traits.activations),
            positions=0 if traits.no_position is None else context,
            rope_dims=keys.count("rope.dimension_count", head_dim),
            rope_base=keys.real("rope.freq_base", 10000.0),
            rope_scaling=_rope_scaling(keys),
            window=keys.count("attention.sliding_window", 0, least=0),
        )
        config._check()
        if fault := unused_key(metadata, architecture, keys.read):
            raise ModelError(fault)
        return config

    def _check(self) -> None:
        if self.heads % self.kv_heads:
            raise ModelError(
                f"attention.head_count {self.heads} is no multiple of head_count_kv {self.kv_heads}"
            )
        if self.rope_dims % 2 or self.rope_dims > self.head_dim:
            raise ModelError(
                f"rope.dimension_count is even and at most {self.head_dim}, got {self.rope_dims}"
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
        low, high = rope_frequencies.yarn_range(self.rope_dims, self.rope_base, context, fast, slow)
        if low > high:  # which transformers and llama.cpp take differently
            raise ModelError(
                f"rope.scaling: with yarn_beta_fast {fast:g}, yarn_beta_slow {slow:g} and an"
                f" original context of {context} YaRN's ramp ends before it begins"
            )

    def rope(self, divisors: np.ndarray[Any, Any] | None) -> tuple[np.ndarray[Any, Any], float]:
        """Rotary frequencies float64 [rope_dims / 2] and the magnitude of cosines and sines.

        `divisors` is the file's tensor rope_freqs, if it has one.
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
            )
        elif scaling.kind == "linear":
            frequencies = rope_frequencies.interpolated(frequencies, scaling.factor)
        return frequencies, scaling.magnitude


def _rope_scaling(keys: "_Keys") -> RopeScaling:
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
    )


def _magnitude(keys: "_Keys", factor: float, kind: str, extrapolation: float) -> float:
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


@dataclass(frozen=True, slots=True)
class _Keys:
    """Typed access to the metadata under the architecture's prefix; `read` are the keys that were
    asked for."""

    metadata: Mapping[str, Any]
    prefix: str
    read: set[str] = field(default_factory=set)

    def full(self, key: str) -> str:
        return f"{self.prefix}.{key}"

    def _get(self, key: str, default: Any) -> Any:
        self.read.add(self.full(key))
        value = self.metadata.get(self.full(key), default)
        if value is None:
            raise ModelError(f"{self.full(key)} is missing from the metadata")
        return value

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        value = self._get(key, default)
        if isinstance(value, list):  # one value a block: fine while all agree
            if len(set(value)) != 1:
                raise ModelError(f"{self.full(key)} differs between blocks: not supported")
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
            raise ModelError(f"{self.full(key)} must be a count of at least {least}, got {value!r}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not np.isfinite(value):
            raise ModelError(f"{self.full(key)} must be a finite number, got {value!r}")
        return float(value)

    def one_of(self, key: str, meanings: Mapping[str, str]) -> str:
        """What the text means; the first meaning where there is none."""
        value = self._get(key, next(iter(meanings)))
        if not isinstance(value, str) or value not in meanings:
            raise ModelError(f"{self.full(key)} is {value!r}: want {', '.join(meanings)}")
        return meanings[value]

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"{self.full(key)} must be true or false, got {value!r}")
        return value

    def text(self, key: str, default: str) -> str:
        return str(self._get(key, default))
