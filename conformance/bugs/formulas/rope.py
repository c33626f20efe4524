"""Planted bugs of rope."""

import numpy as np

from conformance.bugs.bug import changed, in_python
from reference.op import Array
from reference.rope import rope_neox, rope_norm, rotation


def tail_forgotten(x: Array, rotation: Array) -> Array:
    out = rope_neox(x, rotation)
    out[:, :, 2 * rotation.shape[1] :] = 0
    return out


def angles_in_float32(positions: Array, frequencies: Array, magnitude: float) -> Array:
    angle = positions[:, None].astype(np.float32) * frequencies.astype(np.float32)
    return magnitude * np.stack([np.cos(angle), np.sin(angle)], axis=-1)


BUGS = (
    *in_python(
        "rope_norm",
        norm_as_neox=rope_neox,
        turned_backwards=changed(rope_norm, rotation=lambda turn: turn * np.float32([1, -1])),
    ),
    *in_python(
        "rope_neox",
        tail_forgotten,
        neox_as_norm=rope_norm,
        first_head_only=lambda x, rotation: np.concatenate(
            [rope_neox(x[:, :1], rotation), x[:, 1:]], axis=1
        ),
    ),
    *in_python(
        "rotation",
        angles_in_float32,
        position_off_by_one=changed(rotation, positions=lambda positions: positions + 1),
        sine_before_cosine=lambda **inputs: rotation(**inputs)[..., ::-1],
        without_magnitude=changed(rotation, magnitude=1.0),
    ),
)
