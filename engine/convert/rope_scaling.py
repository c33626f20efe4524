"""Rope scaling: Hugging Face's fields as GGUF's keys, or as a tensor.

Up to version 4 of transformers they are `rope_theta` and `rope_scaling` of config.json, from 5 on
all in `rope_parameters`.
"""

import math
from collections.abc import Sequence

import numpy as np

from engine.convert.fields import Fields
from engine.gguf import writer as gw
from reference import rope_frequencies
from reference.formats.format import Floats

KINDS = ("default", "linear", "yarn", "llama3", "longrope")
BETAS = 32.0, 1.0
READ = ("mistral3",)  # architectures of which llama.cpp reads them


def parameters(config: Fields) -> Fields:
    """The fields, wherever they are, `rope_theta` included."""
    scaling, found = (config.part(name) for name in ("rope_scaling", "rope_parameters"))
    if not found.values:
        found = scaling
    for name, told in scaling.values.items():
        if found.get(name) != told and (name, found.get("rope_type")) != ("type", told):
            raise config.error(f"rope_scaling and rope_parameters differ in {name}: want one")
    outer = {
        "rope_theta": config.get("rope_theta", config.get("rotary_emb_base")),  # GPT-NeoX's name
        "partial_rotary_factor": config.get("partial_rotary_factor", config.get("rotary_pct")),
    }
    return Fields(outer | dict(found.values), found.place)


def of_layers(config: Fields, kind: str) -> Fields:
    """The fields as if all layers rotated like those of a kind: up to version 4 all have one base,
    and layers with a window are not scaled."""
    own = config.part("rope_parameters").part(kind).values
    stretched = config.get("rope_scaling") if kind == "full_attention" else None
    fields = {**config.values, "rope_parameters": own, "rope_scaling": stretched}
    return Fields(fields, config.place)


def part_turned(config: Fields, usual: float) -> float:
    """The part of each head that rope rotates: its first dimensions."""
    rope = parameters(config)
    part = rope.real("partial_rotary_factor", usual)
    if not 0 < part <= 1:
        raise rope.error(f"partial_rotary_factor must be above 0 and at most 1, got {part}")
    return part


def check(config: Fields, known: Sequence[str]) -> None:
    """Refuse a kind of scaling that the family does not run."""
    rope = parameters(config)
    if (kind := _kind(rope)) not in known:
        has = ", ".join(known)
        raise rope.error(f"rope_type is {kind!r}, which this family has not; it has {has}")


def keys(config: Fields) -> gw.Keys:
    """GGUF's keys, without the architecture, except divisors."""
    rope = parameters(config)
    kind = _kind(rope)
    found = {"freq_base": gw.f32(rope.real("rope_theta", 10000.0))}
    if kind in ("linear", "yarn"):
        factor = _factor(config, rope)
        found |= {"scaling.type": gw.text(kind), "scaling.factor": gw.f32(factor)}
    if kind == "longrope":
        found |= {
            "scaling.original_context_length": gw.u32(_original_context(config, rope)),
            "scaling.attn_factor": gw.f32(_long_magnitude(config, rope)),
        }
    if kind == "yarn":
        for name in ("attn_factor", "extrapolation_factor"):  # in YaRN's first code
            if rope.real(name, 1.0) != 1:
                raise rope.error(f"{name} is {rope.get(name)}, which transformers ignores")
        # of attn_factor, which multiplies YaRN's own, and yarn_attn_factor, which replaces it,
        # llama.cpp reads the first
        own = rope_frequencies.yarn_magnitude(factor)
        fast, slow = betas(rope)
        found |= {
            "scaling.original_context_length": gw.u32(_original_context(config, rope)),
            "scaling.attn_factor": gw.f32(_magnitude(rope, factor) / own),
            "scaling.yarn_beta_fast": gw.f32(fast),
            "scaling.yarn_beta_slow": gw.f32(slow),
        }
        if not rope.flag("truncate", True):
            found["scaling.yarn_truncate"] = gw.boolean(False)
    return {f"rope.{key}": value for key, value in found.items()}


def betas(rope: Fields) -> tuple[float, float]:
    """Rotations within the original context that bound YaRN's ramp; 0 means the default."""
    fast, slow = BETAS
    return rope.real("beta_fast", fast) or fast, rope.real("beta_slow", slow) or slow


def notes(config: Fields, gguf: str) -> list[str]:
    """Differences from llama.cpp's computation for an architecture."""
    rope = parameters(config)
    if _kind(rope) != "yarn":
        return []
    fast, slow = BETAS
    found = []
    if betas(rope) != BETAS and gguf not in READ:
        said = "its YaRN has betas of its own"
        found.append(f"{said}: llama.cpp, of {gguf}, computes with {fast} and {slow}")
    if not rope.flag("truncate", True):
        found.append(f"its YaRN is not truncated: llama.cpp, of {gguf}, truncates")
    return found


def divisors(config: Fields, rope_dims: int) -> dict[str, Floats]:
    """Tensors of frequency divisors for the file, each [rope_dims / 2]."""
    rope = parameters(config)
    of_kind = {"llama3": _of_llama3, "longrope": _of_contexts}.get(_kind(rope))
    return of_kind(config, rope, rope_dims) if of_kind else {}


def _of_llama3(config: Fields, rope: Fields, rope_dims: int) -> dict[str, Floats]:
    """Divisors of Llama 3.1 and later."""
    low, high = rope.real("low_freq_factor"), rope.real("high_freq_factor")
    if not 0 < low < high:
        raise rope.error(f"want 0 < low_freq_factor < high_freq_factor, got {low} and {high}")
    frequencies = rope_frequencies.plain(rope_dims, rope.real("rope_theta", 10000.0))
    context = _original_context(config, rope)
    factor = _factor(config, rope)
    found = rope_frequencies.llama3_divisors(frequencies, factor, low, high, context)
    return {"rope_freqs.weight": found.astype(np.float32)}


def _of_contexts(config: Fields, rope: Fields, rope_dims: int) -> dict[str, Floats]:
    """Divisors of long rope, for short contexts and for long ones."""
    found = {}
    for kind in ("short", "long"):
        told = rope.get(f"{kind}_factor")
        numbers = isinstance(told, list) and all(isinstance(one, int | float) for one in told)
        if not numbers or len(told) != rope_dims // 2 or not min(told) > 0:
            raise rope.error(f"{kind}_factor must be {rope_dims // 2} positive numbers")
        found[f"rope_factors_{kind}.weight"] = np.array(told, np.float32)
    return found


def _kind(rope: Fields) -> str:
    kind = rope.get("rope_type", rope.get("type", "default"))
    kind = {"su": "longrope", "mrope": "default"}.get(str(kind), kind)  # their first names
    if kind not in KINDS:
        raise rope.error(f"rope_type is {kind!r}; this engine runs {', '.join(KINDS)}")
    return str(kind)


def _factor(config: Fields, rope: Fields) -> float:
    """The factor of context extension; YaRN's is the ratio of contexts where none is given."""
    default = None
    if _kind(rope) == "yarn" and rope.values.get("factor", 1) is None:
        default = config.count("max_position_embeddings") / _original_context(config, rope)
    factor = rope.real("factor", default)
    if factor <= 0:
        raise rope.error(f"factor must be positive, got {rope.get('factor')}")
    return factor


def _original_context(config: Fields, rope: Fields) -> int:
    """The original context; the model's own field takes precedence over its rope's."""
    name = "original_max_position_embeddings"
    if config.get(name) is not None:
        return config.count(name)
    return rope.count(name, config.get("max_position_embeddings"))


def _long_magnitude(config: Fields, rope: Fields) -> float:
    """Long rope's scale of cosines and sines: given, or computed as in transformers."""
    if rope.get("attention_factor") is not None:
        return rope.real("attention_factor")
    original = _original_context(config, rope)
    factor = rope.real("factor", config.count("max_position_embeddings") / original)
    if factor <= 1:
        return 1.0
    if original == 1:
        raise rope.error("original_max_position_embeddings is 1: nothing can be stretched from it")
    return math.sqrt(1 + math.log(factor) / math.log(original))


def _magnitude(rope: Fields, factor: float) -> float:
    """The scale of cosines and sines: given, or computed as in transformers."""
    if rope.get("attention_factor") is not None:
        return rope.real("attention_factor")
    of = rope_frequencies.yarn_magnitude
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return of(factor, rope.real("mscale")) / of(factor, rope.real("mscale_all_dim"))
    return of(factor)
