"""Small random LLaMA checkpoints in Hugging Face's own terms, made with NumPy alone.

Weights are uniform, not normal: their bits then come straight from the generator's, so that every
machine makes the very checkpoint that the goldens' peers were asked about.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference.formats import FORMATS
from reference.op import Array

SPECIAL = 3  # <unk>, <s>, </s>


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A `LlamaForCausalLM`: the fields that its config has, and a seed for its weights."""

    seed: int
    hidden_size: int = 48
    intermediate_size: int = 88
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 12
    vocab_size: int = 67
    max_position_embeddings: int = 256
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None

    def weights(self) -> dict[str, Array]:
        """The state dict, float32; `lm_head.weight` is missing where it is the embedding."""
        rng = np.random.default_rng(self.seed)
        hidden, ffn = self.hidden_size, self.intermediate_size
        q, kv = (n * self.head_dim for n in (self.num_attention_heads, self.num_key_value_heads))

        def uniform(deviation: float, *dims: int) -> Array:
            unit = 2 * rng.random(dims, np.float32) - 1
            return np.float32(3**0.5 * deviation) * unit

        def projection(name: str, rows: int, elements: int, bias: bool = False) -> dict[str, Array]:
            weight = {f"{name}.weight": uniform(elements**-0.5, rows, elements)}
            return weight | {f"{name}.bias": uniform(0.3, rows)} if bias else weight

        def norm(name: str) -> dict[str, Array]:
            return {f"{name}.weight": 1 + uniform(0.1, hidden)}

        weights = {"model.embed_tokens.weight": uniform(1.0, self.vocab_size, hidden)}
        for i in range(self.num_hidden_layers):
            layer, bias = f"model.layers.{i}", self.attention_bias
            weights |= norm(f"{layer}.input_layernorm")
            weights |= projection(f"{layer}.self_attn.q_proj", q, hidden, bias)
            weights |= projection(f"{layer}.self_attn.k_proj", kv, hidden, bias)
            weights |= projection(f"{layer}.self_attn.v_proj", kv, hidden, bias)
            weights |= projection(f"{layer}.self_attn.o_proj", hidden, q, bias)
            weights |= norm(f"{layer}.post_attention_layernorm")
            weights |= projection(f"{layer}.mlp.gate_proj", ffn, hidden)
            weights |= projection(f"{layer}.mlp.up_proj", ffn, hidden)
            weights |= projection(f"{layer}.mlp.down_proj", hidden, ffn)
        weights |= norm("model.norm")
        if not self.tie_word_embeddings:
            weights |= projection("lm_head", self.vocab_size, hidden)
        return weights

    def tokens(self, count: int = 40) -> list[int]:
        """A sequence to ask about: BOS, then any tokens."""
        rng = np.random.default_rng([self.seed, 1])
        return [1, *rng.integers(SPECIAL, self.vocab_size, count - 1).tolist()]

    def digest(self) -> str:
        """sha256 of the weights: whether this machine made the same checkpoint as another."""
        digest = hashlib.sha256()
        for name, weight in self.weights().items():
            digest.update(name.encode() + weight.astype("<f4").tobytes())
        return digest.hexdigest()


def rounded(weights: Mapping[str, Array], format: str) -> dict[str, Array]:
    """The same weights after a stay in `format`; vectors are always stored in F32."""
    layout = FORMATS[format]
    return {
        name: layout.dequantise(layout.quantise(weight)) if weight.ndim == 2 else weight
        for name, weight in weights.items()
    }


# Quantised formats want rows of whole blocks of 32; float formats have to take any size.
FLOATS = ("F32", "F16", "BF16")
QUANTISED = ("Q8_0", "Q4_0")

LINEAR = {"rope_type": "linear", "factor": 2.5}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
YARN_TUNED = YARN | {"attention_factor": 0.9, "beta_fast": 8.0, "beta_slow": 2.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CHECKPOINTS = {
    "multi_head": Checkpoint(1, num_key_value_heads=4),
    "grouped_query": Checkpoint(2),
    "multi_query": Checkpoint(3, num_key_value_heads=1),
    "tied": Checkpoint(4, tie_word_embeddings=True),
    "biased": Checkpoint(5, attention_bias=True),
    "odd": Checkpoint(6, hidden_size=35, intermediate_size=77, num_attention_heads=5,
                      num_key_value_heads=5, head_dim=6, vocab_size=53),
    "wide_heads": Checkpoint(7, hidden_size=44, head_dim=16),
    "narrow_heads": Checkpoint(8, hidden_size=60, num_attention_heads=3, num_key_value_heads=1,
                               head_dim=10),
    "rope_theta": Checkpoint(9, rope_theta=500000.0),
    "rope_linear": Checkpoint(10, rope_scaling=LINEAR),
    "rope_yarn": Checkpoint(11, rope_scaling=YARN),
    "rope_yarn_tuned": Checkpoint(12, rope_scaling=YARN_TUNED),
    "rope_llama3": Checkpoint(13, rope_theta=500000.0, rope_scaling=LLAMA3),
    "coarse_eps": Checkpoint(14, rms_norm_eps=1e-2),
    "blocks": Checkpoint(15, hidden_size=256, intermediate_size=512, num_attention_heads=8,
                         num_key_value_heads=4, head_dim=32, num_hidden_layers=1),
    "deep_blocks": Checkpoint(16, hidden_size=256, intermediate_size=512, num_attention_heads=8,
                              num_key_value_heads=4, head_dim=32, num_hidden_layers=3),
}  # fmt: skip


def formats(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Formats that all matrices of a checkpoint fit."""
    elements = (
        checkpoint.hidden_size,
        checkpoint.intermediate_size,
        checkpoint.num_attention_heads * checkpoint.head_dim,
    )
    return FLOATS if any(n % 32 for n in elements) else FLOATS + QUANTISED


QUESTIONS = [(name, f) for name, checkpoint in CHECKPOINTS.items() for f in formats(checkpoint)]
