"""Rotary frequencies that are stretched: Hugging Face's fields as GGUF's keys, or as a tensor.

Up to version 4 of transformers they are `rope_theta` and `rope_scaling` of config.json, from 5 on
all in `rope_parameters`.
"""

import math

import numpy as np

from engine import gguf_writer as gw
from engine.convert.fields import Fields
from reference import rope_frequencies
from reference.formats.format import Floats

KINDS = ("default", "linear", "yarn", "llama3")


def parameters(config: Fields) -> Fields:
    """The fields, wherever they are, with `rope_theta` among them."""
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    found = config.part(name)
    outer = {key: config.get(key) for key in ("rope_theta", "partial_rotary_factor")}
    return Fields(outer | dict(found.values), found.place)


def keys(config: Fields) -> gw.Keys:
    """What GGUF says of the frequencies, llama3's divisors apart, by keys without architecture."""
    rope = parameters(config)
    kind = _kind(rope)
    found = {"freq_base": gw.f32(rope.real("rope_theta", 10000.0))}
    if kind in ("linear", "yarn"):
        factor = rope.real("factor")
        found |= {"scaling.type": gw.text(kind), "scaling.factor": gw.f32(factor)}
    if kind == "yarn":
        if not rope.flag("truncate", True):
            raise rope.error("truncate is false, which GGUF has no key for")
        own = rope_frequencies.yarn_magnitude(factor)  # GGUF's factor multiplies YaRN's own
        found |= {
            "scaling.original_context_length": gw.u32(_original_context(config, rope)),
            "scaling.attn_factor": gw.f32(_magnitude(rope, factor) / own),
            "scaling.yarn_beta_fast": gw.f32(rope.real("beta_fast", 32.0)),
            "scaling.yarn_beta_slow": gw.f32(rope.real("beta_slow", 1.0)),
        }
    return {f"rope.{key}": value for key, value in found.items()}


def divisors(config: Fields, head_dim: int) -> Floats | None:
    """The tensor rope_freqs [head_dim / 2] of Llama 3.1 and later."""
    rope = parameters(config)
    if _kind(rope) != "llama3":
        return None
    low, high = rope.real("low_freq_factor"), rope.real("high_freq_factor")
    if not 0 < low < high:
        raise rope.error(f"want 0 < low_freq_factor < high_freq_factor, got {low} and {high}")
    frequencies = rope_frequencies.plain(head_dim, rope.real("rope_theta", 10000.0))
    context = _original_context(config, rope)
    found = rope_frequencies.llama3_divisors(frequencies, rope.real("factor"), low, high, context)
    return found.astype(np.float32)


def _kind(rope: Fields) -> str:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in KINDS:
        raise rope.error(f"rope_type is {kind!r}; this engine runs {', '.join(KINDS)}")
    if rope.real("partial_rotary_factor", 1.0) != 1:
        raise rope.error("partial_rotary_factor: this family turns whole heads")
    if kind != "default" and rope.real("factor") <= 0:
        raise rope.error(f"factor must be positive, got {rope.get('factor')}")
    return str(kind)


def _original_context(config: Fields, rope: Fields) -> int:
    default = config.get("original_max_position_embeddings", config.get("max_position_embeddings"))
    return rope.count("original_max_position_embeddings", default)


def _magnitude(rope: Fields, factor: float) -> float:
    """Of cosines and sines: told, or computed as transformers does."""

    def of(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    if rope.get("attention_factor") is not None:
        return rope.real("attention_factor")
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return of(rope.real("mscale")) / of(rope.real("mscale_all_dim"))
    return of(1.0)
