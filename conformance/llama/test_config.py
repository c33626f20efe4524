"""A model's metadata: defaults, and errors in one line."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from gguf import MODEL_ARCH_NAMES

from engine.config import ModelConfig, ModelError
from engine.convert import CheckpointError, rope_scaling
from engine.convert.fields import Fields
from engine.metadata.architectures import ARCHITECTURES
from engine.metadata.config import config_of
from engine.metadata.missing import FAMILY, MISSING
from reference import rope_frequencies

PLAIN: dict[str, Any] = {
    "context_length": 128,
    "embedding_length": 64,
    "block_count": 2,
    "feed_forward_length": 96,
    "attention.head_count": 4,
    "attention.layer_norm_rms_epsilon": 1e-5,
}
VOCAB = 70


def config(changes: dict[str, Any] | None = None, architecture: Any = "llama") -> ModelConfig:
    """The configuration with some of the architecture's keys changed, or removed by None."""
    own = {k: v for k, v in (PLAIN | (changes or {})).items() if v is not None}
    metadata = {f"{architecture}.{key}": value for key, value in own.items()}
    return config_of({"general.architecture": architecture, **metadata}, VOCAB)


def complaint(changes: dict[str, Any], architecture: Any = "llama") -> str:
    """The error line for such a configuration."""
    with pytest.raises(ModelError) as caught:
        config(changes, architecture)
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) < 80 + len(", ".join(ARCHITECTURES))  # which one of them lists
    return line


def scaling(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys of RoPE scaling, by their full names."""
    return {f"rope.scaling.{key}": value for key, value in keys.items()}


def test_defaults():
    """Optional keys have llama.cpp's defaults."""
    found = config()
    assert (found.architecture, found.name, found.vocab) == ("llama", "", VOCAB)
    assert (found.heads, found.kv_heads, found.head_dim, found.rope_dims) == (4, 4, 16, 16)
    assert (found.hidden, found.blocks, found.ffn, found.context) == (64, 2, 96, 128)
    assert (found.norm_eps, found.rope_base, found.rope_scaling.kind) == (1e-5, 10000.0, "none")
    assert config({"expert_count": 0}) == found  # as files without experts may say it


def test_given_values():
    """Existing keys override defaults; per-block values must all agree."""
    sizes = {"key_length": 24, "value_length": 24, "head_count_kv": [2, 2]}
    keys = {f"attention.{key}": value for key, value in sizes.items()}
    rope = {"rope.dimension_count": 10, "rope.freq_base": 5e5}
    found = config({**keys, **rope, "feed_forward_length": [96, 96]})
    assert (found.kv_heads, found.head_dim, found.rope_dims, found.ffn) == (2, 24, 10, 96)
    assert found.rope_base == 5e5


@pytest.mark.parametrize("key", PLAIN)
def test_missing_keys(key):
    """A required key is named when it is missing."""
    assert complaint({key: None}) == f"llama.{key} is missing from the metadata"


COUNTS = [key for key in PLAIN if key.endswith(("count", "length"))]
OPTIONAL_COUNTS = (
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "rope.dimension_count", "rope.scaling.original_context_length", "expert_count",
)  # fmt: skip
NUMBERS = (
    "attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.scale_linear",
    "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_log_multiplier",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
)  # fmt: skip
NO_COUNTS = (0, -1, 2**31, 2**64 - 1, 1.5, math.nan, True, "4", "", [], ["4"], [4, 5])
WRONG = [
    *product(COUNTS, NO_COUNTS),
    *product(OPTIONAL_COUNTS, (-1, 1.5, "16", True, [])),
    *product(NUMBERS, (math.nan, math.inf, "1e-5", [1.0], True, [])),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_wrong_values(key, value):
    """Values that are not positive integers, or not finite, are refused by name, in optional keys
    too; so are values that differ between blocks."""
    assert complaint({key: value}).startswith(f"llama.{key}")


@pytest.mark.parametrize("architecture", [None, "", "gpt3", "LLAMA", 3, ["llama"]])
def test_unknown_architectures(architecture):
    """Only architectures that the engine supports are accepted; the line names them."""
    line = complaint({}, architecture)
    assert line.startswith(f"general.architecture is {architecture!r}, not one of llama, ")


@pytest.mark.parametrize(
    ("architecture", "op"), [("rwkv7", "RWKV 7's time mixing"), ("qwen", FAMILY)]
)
def test_unsupported_architectures_name_the_missing_op(architecture, op):
    """For every unsupported architecture of the gguf package the missing op is known."""
    line = complaint({}, architecture)
    assert line == f"general.architecture is '{architecture}', which is missing {op}"
    assert {*MODEL_ARCH_NAMES.values()} <= MISSING.keys() | ARCHITECTURES.keys()
    assert not MISSING.keys() & ARCHITECTURES.keys()


YARN_TYPE = {"rope.scaling.type": "yarn"}
EXPERTS = {"expert_count": 8, "expert_used_count": 2}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"feed_forward_length": [96, 64]},
     "llama.feed_forward_length differs between blocks: not supported"),
    ({"attention.layer_norm_rms_epsilon": -1e-5}, "layer_norm_rms_epsilon -1e-05"),
    ({"rope.freq_base": 0.0}, "rope.freq_base 0.0 must be positive"),
    ({"rope.freq_base": -10000.0}, "rope.freq_base -10000.0 must be positive"),
    ({"attention.head_count_kv": 3}, "head_count 4 is no multiple of head_count_kv 3"),
    ({"attention.head_count_kv": 8}, "head_count 4 is no multiple of head_count_kv 8"),
    ({"attention.value_length": 8}, "attention.value_length differs from key_length"),
    ({"expert_count": 8}, "expert_used_count is missing"),
    ({"attention.causal": False}, "attention.causal is false"),
    ({"rope.dimension_count": 7}, "rope.dimension_count must be even and at most 16, got 7"),
    ({"rope.dimension_count": 18}, "rope.dimension_count must be even and at most 16, got 18"),
    ({"attention.temperature_scale": 0.1}, "llama here has no temperature of attention"),
    ({"rope.scaling.type": "dynamic"}, "rope.scaling.type is 'dynamic'"),
    ({"rope.scaling.type": "linear", "rope.scaling.factor": -2.0}, "rope.scaling.factor"),
    ({"rope.scaling.type": 7}, "rope.scaling.type"),
    ({"rope.scaling.yarn_log_multiplier": -0.1}, "yarn_log_multiplier must be at least 0"),
    ({"attention.causal": "no"}, "attention.causal"),
    ({"attention.head_count": 65}, "64 is no multiple of attention.head_count"),
    ({"attention.head_count": 3}, "embedding_length 64 is no multiple of attention.head_count"),
    (YARN_TYPE | scaling({"factor": 0.0}), "rope.scaling.factor"),
    (YARN_TYPE | scaling({"yarn_beta_slow": 0.0}), "scaling.yarn_beta_slow"),
    (YARN_TYPE | scaling({"yarn_beta_fast": -1}), "scaling.yarn_beta_fast"),
    (YARN_TYPE | scaling({"yarn_beta_fast": 0.05}),
     "0.05, yarn_beta_slow 1 and an original context of 128"),
    (YARN_TYPE | scaling({"original_context_length": 1}),
     "context of 1 YaRN's ramp ends before it begins"),
    (YARN_TYPE | scaling({"yarn_ext_factor": 0.0}), "yarn_ext_factor is 0"),
    (YARN_TYPE | {"rope.freq_base": 1.0}, "rope.freq_base must exceed 1"),
    (EXPERTS | {"expert_used_count": 9}, "llama.expert_used_count is 9, of 8 experts"),
    (EXPERTS | {"expert_gating_func": 7},
     "llama.expert_gating_func is 7: want 1 (softmax), 2"),
    (EXPERTS | {"expert_group_count": 3},
     "expert_group_count 3, of which 1 are used, does not divide 8"),
    (EXPERTS | {"expert_group_count": 2, "expert_group_used_count": 3}, "of which 3 are used"),
    (EXPERTS | {"expert_group_count": 8, "expert_group_used_count": 1},
     "is 2, more than 1 groups have"),
    (EXPERTS | {"expert_weights_norm": "no"}, "expert_weights_norm"),
    (EXPERTS | {"leading_dense_block_count": 1}, "leading_dense_block_count"),
    (EXPERTS | {"moe_every_n_layers": 2}, "moe_every_n_layers"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_unsupported_models_are_refused(changes, message):
    """A well-formed model that the engine cannot run is refused with the reason."""
    assert message in complaint(changes)


def test_families_without_experts_have_none():
    """An expert_count in a family without mixtures is refused."""
    line = complaint({"expert_count": 8}, "qwen3")
    assert "qwen3.expert_count: mixtures of experts" in line


def test_attention_temperature_requires_full_rope():
    """It is part of the rotation of queries."""
    keys = {"attention.temperature_scale": 0.1, "rope.dimension_count": 10}
    assert "rope.dimension_count is 10, and only what turns" in complaint(keys, "mistral3")
    assert config(keys | {"rope.dimension_count": 16}, "mistral3").temperature == 0.1


SCALED: dict[str, tuple[dict[str, Any], Any]] = {
    "none": (scaling({"type": "none", "factor": 4.0}), 1),
    "linear": (scaling({"type": "linear", "factor": 4.0}), 4),
    "linear, without its name": (scaling({"factor": 4.0}), 4),
    "linear, by the old key": ({"rope.scale_linear": 4.0}, 4),
    "linear of 1": (scaling({"type": "linear"}), 1),
    "a factor of 0, which old files have": (scaling({"factor": 0.0}), 1),
}


@pytest.mark.parametrize(("changes", "factor"), SCALED.values(), ids=SCALED.keys())
def test_linear_scaling(changes, factor):
    """Frequencies are divided by the factor, from either key."""
    frequencies, magnitude = config(changes).rope(None)
    np.testing.assert_allclose(frequencies, rope_frequencies.plain(16, 10000.0) / factor)
    assert magnitude == 1


# What transformers 5.23's _compute_yarn_parameters gives a head of 16 at base 10,000 for a factor
# of 8 and an original context of 256. llama.cpp's rope_yarn (of llama-cpp-python 0.3.36, compiled
# apart) gives the same with what its context makes of the keys; it alone told "half extrapolated".
YARN = {"type": "yarn", "factor": 8.0, "original_context_length": 256}
FREQUENCIES = [1, 0.247052942, 0.05625, 0.0108703295, 0.00125, 3.95284708e-4, 1.25e-4,
               3.95284708e-5]  # fmt: skip
OF_BETAS = [1, 0.316227766, 0.05625, 0.00395284708, *FREQUENCIES[4:]]
SHRUNK = [1, 0.395284708, 0.15, 0.0553398591, 0.02, 0.00632455532, 0.002, 6.32455532e-4]
BETWEEN = [1, 0.243596405, 0.0479650758, 0.00597613677, *FREQUENCIES[4:]]
HALF = [0.5625, 0.14329069, 0.034375, 0.0074115877, *FREQUENCIES[4:]]
OWN = 1.20794415
YARNS: dict[str, tuple[dict[str, Any], list[float], float]] = {
    "alone": ({}, FREQUENCIES, OWN),
    "llama.cpp's attn_factor": ({"attn_factor": 0.75}, FREQUENCIES, 0.90595812),
    "transformers' attention_factor": ({"yarn_attn_factor": 0.9}, FREQUENCIES, 0.9),
    "an attention_factor of 1": ({"yarn_attn_factor": 1.0}, FREQUENCIES, 1.0),
    "both": ({"yarn_attn_factor": 0.9, "attn_factor": 0.75}, FREQUENCIES, 0.675),
    "mscale_all_dim": ({"yarn_log_multiplier": 0.5}, FREQUENCIES, 1.09418),
    "mscale_all_dim of 1": ({"yarn_log_multiplier": 1.0}, FREQUENCIES, 1.0),
    "told beside it": ({"yarn_log_multiplier": 1.0, "yarn_attn_factor": 0.9}, FREQUENCIES, 0.9),
    "betas": ({"yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0}, OF_BETAS, OWN),
    "below 1": ({"factor": 0.5}, SHRUNK, 1.0),
    "half extrapolated": ({"yarn_ext_factor": 0.5}, HALF, OWN),
    "as llama.cpp saves it": (
        {"yarn_ext_factor": -1.0, "yarn_attn_factor": 1.0, "yarn_log_multiplier": 0.0,
         "attn_factor": 1.0, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "finetuned": False},
        FREQUENCIES, OWN,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("keys", "frequencies", "magnitude"), YARNS.values(), ids=YARNS)
def test_yarn_scaling(keys, frequencies, magnitude):
    """Each key has its meaning in transformers and llama.cpp: attn_factor multiplies YaRN's own
    magnitude, yarn_attn_factor replaces it."""
    ours, own = config(scaling(YARN | keys)).rope(None)
    np.testing.assert_allclose(ours, frequencies, rtol=1e-6)
    assert own == pytest.approx(magnitude, rel=1e-6)


LONGER = {"factor": 8.0, "original_max_position_embeddings": 256}
FIELDS: dict[str, tuple[dict[str, Any], list[float], float]] = {
    "alone": (LONGER, FREQUENCIES, OWN),
    "attention_factor": (LONGER | {"attention_factor": 0.9}, FREQUENCIES, 0.9),
    "an attention_factor of 1": (LONGER | {"attention_factor": 1.0}, FREQUENCIES, 1.0),
    "two scales": (LONGER | {"mscale": 2.0, "mscale_all_dim": 0.5}, FREQUENCIES, 1.28253996),
    "two scales of 1": (LONGER | {"mscale": 1, "mscale_all_dim": 1}, FREQUENCIES, 1.0),
    "half of two scales": (LONGER | {"mscale": 2.0, "mscale_all_dim": 0}, FREQUENCIES, OWN),
    "betas": (LONGER | {"beta_fast": 8, "beta_slow": 2}, OF_BETAS, OWN),
    "betas of 0": (LONGER | {"beta_fast": 0, "beta_slow": None}, FREQUENCIES, OWN),
    "no factor": (LONGER | {"factor": None}, FREQUENCIES, OWN),
    "not truncated": (LONGER | {"truncate": False}, BETWEEN, OWN),
    "below 1": (LONGER | {"factor": 0.5}, SHRUNK, 1.0),
}


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize(("fields", "frequencies", "magnitude"), FIELDS.values(), ids=FIELDS)
def test_yarn_of_a_checkpoint(fields, frequencies, magnitude, outside):
    """The converter's keys give what transformers computes from the fields; the original context
    outside of them has precedence."""
    values = {"max_position_embeddings": 2048, "rope_scaling": {"type": "yarn"} | fields}
    if outside:
        name = "original_max_position_embeddings"
        values |= {name: 256, "rope_scaling": {"type": "yarn"} | fields | {name: 999}}
    keys = rope_scaling.keys(Fields(values, "config.json"))
    ours, own = config({key: value for key, (_, value) in keys.items()}).rope(None)
    np.testing.assert_allclose(ours, frequencies, rtol=1e-6)
    assert own == pytest.approx(magnitude, rel=1e-6)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"attn_factor": 2.0}, "attn_factor is 2.0, which transformers ignores"),
        ({"extrapolation_factor": 0.5}, "extrapolation_factor is 0.5, which transformers ignores"),
        ({"factor": 0}, "factor must be positive, got 0"),
        ({"beta_fast": "8"}, "beta_fast must be a finite number"),
    ],
)
def test_yarn_settings_without_a_key_are_refused(fields, words):
    """So are those on which transformers and YaRN's first code differ."""
    scaling = LONGER | {"type": "yarn"} | fields
    with pytest.raises(CheckpointError, match=words):
        rope_scaling.keys(Fields({"rope_scaling": scaling}, "config.json"))


def test_yarn_betas_that_llama_cpp_ignores_are_noted():
    """Non-default betas have a note, since llama.cpp does not read them for these families."""
    for betas, notes in (({}, 0), ({"beta_fast": 32}, 0), ({"beta_fast": 16}, 1)):
        fields = Fields({"rope_scaling": LONGER | {"type": "yarn"} | betas}, "config.json")
        found = rope_scaling.notes(fields, "llama")
        assert len(found) == notes


def test_yarns_original_context_defaults_to_the_models():
    """If the key is absent, the original context is the model's."""
    own = config(scaling(YARN | {"original_context_length": None}) | {"context_length": 256})
    told = config(scaling(YARN))
    np.testing.assert_array_equal(own.rope(None)[0], told.rope(None)[0])


@pytest.mark.parametrize("kind", ["none", "linear"])
def test_factors_without_yarn(kind):
    """attn_factor multiplies cosines and sines for any kind; YaRN's keys apply to YaRN only."""
    keys = {"type": kind, "factor": 8.0, "attn_factor": 0.75}
    yarns = {"yarn_attn_factor": 0.9, "yarn_log_multiplier": 1.0, "yarn_beta_fast": 1.0}
    assert config(scaling(keys | yarns)).rope(None)[1] == 0.75


def test_rope_freqs_divide_frequencies():
    """The file's rope_freqs divide the frequencies."""
    divisors = np.linspace(1, 8, 8, dtype=np.float32)
    found, _ = config().rope(divisors)
    np.testing.assert_allclose(found, rope_frequencies.plain(16, 10000.0) / divisors)
