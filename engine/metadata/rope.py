"""A file's keys about rope scaling."""

from dataclasses import replace

import numpy as np

from engine.config import Latent, RopeScaling
from engine.errors import ModelError
from engine.metadata.keys import Keys
from reference import rope_frequencies


def rope_scaling_of(keys: Keys) -> RopeScaling:
    legacy = keys.real("rope.scale_linear", 0.0)
    factor = keys.real("rope.scaling.factor", legacy or 1.0)
    kind = keys.text("rope.scaling.type", "linear" if factor not in (0.0, 1.0) else "none")
    if kind not in (known := ("none", "linear", "yarn", "longrope")):
        raise ModelError(f"{keys.full('rope.scaling.type')} is {kind!r}: want {', '.join(known)}")
    if kind == "longrope":  # what it asks for are the two sets of divisors, which are tensors
        kind = "linear" if factor else "none"
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
    if (
        told and extrapolation >= 0
    ):  # below 0 llama.cpp stored defaults of its own, without any given
        return told * times
    yarn_magnitude = rope_frequencies.yarn_magnitude
    return yarn_magnitude(factor) / yarn_magnitude(factor, scale) * times


def without_magnitude(keys: Keys, scaling: RopeScaling) -> RopeScaling:
    """For latent attention, whose vectors cosines and sines must not scale; YaRN's magnitude scales
    the scores."""
    if scaling.kind != "yarn" and scaling.magnitude != 1:
        name = keys.full("rope.scaling.attn_factor")
        raise ModelError(f"{name} is {scaling.magnitude}: latent attention here has none but 1")
    return replace(scaling, magnitude=1.0)


def steepness(keys: Keys, latent: Latent | None, scaling: RopeScaling) -> float:
    """YaRN's scale of latent attention's scores, in place of cosines and sines: the square of 1 + m
    ln(factor), where m is a tenth of transformers' mscale_all_dim."""
    if not latent or scaling.kind != "yarn" or scaling.factor <= 1:
        return 1.0
    m = keys.real("rope.scaling.yarn_log_multiplier", 0.0)
    return float(1 + m * np.log(scaling.factor)) ** 2


def check_sections(keys: Keys, pairs: int, how: str) -> None:
    """Check the sections of multimodal rope, "interleaved" or "in stretches". A text has one
    position in all three dimensions of an image's, so it does not matter which of them rotates a
    pair, but one must: pairs left to a fourth section are not rotated (llama.cpp's order)."""
    key = "rope.dimension_sections"
    sections = keys.metadata.get(keys.full(key))
    if sections is None:
        return
    keys.read.add(keys.full(key))
    told = sections if isinstance(sections, list) else []
    sizes = [size for size in told if isinstance(size, int) and size >= 0]
    every = range(min(pairs, sum(sizes))) if len(sizes) == len(told) > 2 else range(0)
    whole = sum(sizes[:3])
    if how == "interleaved":
        left = any(pair >= 3 * sizes[pair % 3] for pair in every)
    else:
        left = whole < len(every)
    if not every or left:
        raise ModelError(
            f"{keys.full(key)} is {sections!r:.40}: want three dimensions that turn {pairs} pairs"
        )
