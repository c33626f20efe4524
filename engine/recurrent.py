"""Recurrent blocks: their sizes, and the shapes of their states and small tensors."""

import re
from dataclasses import dataclass

import numpy as np

from reference.op import Array

# Matrices that ops take as float32, neither packed nor quantised. A file stores most of them as
# [channels, values], ops take [values, channels].
_SMALL = re.compile(r"blk\.\d+\.(ssm_conv1d(_[xbcqkv])?\.weight|shortconv\.conv\.weight|ssm_[ad])")
_NORM = re.compile(r"blk\.\d+\.ssm_norm\.weight")
_OF_HEADS = re.compile(r"blk\.\d+\.attn_[qk]_norm\.weight")


def is_small(name: str) -> bool:
    """Whether the tensor is one of these matrices."""
    return bool(_SMALL.fullmatch(name) or _NORM.fullmatch(name))


def to_op_layout(name: str, values: Array) -> Array:
    """A small tensor or a vector in its op's layout, float32. A norm's rows are groups; those of
    per-head norms are concatenated."""
    if _OF_HEADS.fullmatch(name):
        return values.reshape(-1)
    return np.ascontiguousarray(values.T if _SMALL.fullmatch(name) else values)


@dataclass(frozen=True, slots=True)
class Ssm:
    """Sizes of a recurrent block: `taps` of its convolution, `inner` channels of `state` elements
    each, `rank` of Mamba's step (or number of heads), `groups` of heads."""

    taps: int
    inner: int = 0
    state: int = 0
    rank: int = 0
    groups: int = 1

    @property
    def conv_channels(self) -> int:
        """Channels of Mamba 2's convolution (x, B and C), or of a delta net's (values, keys and
        queries)."""
        return self.inner + 2 * self.groups * self.state


def states(architecture: str, ssm: Ssm, block: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a recurrent block's states, by name."""
    kept, name = ssm.taps - 1, f"blk.{block}"
    if not ssm.state:  # a short convolution
        return {f"{name}.conv_state": (kept, ssm.inner)}
    if architecture == "mamba":
        return {
            f"{name}.conv_state": (kept, ssm.inner),
            f"{name}.ssm_state": (ssm.state, ssm.inner),
        }
    parts = "xbc" if architecture in ("mamba2", "granitehybrid") else "vkq"
    grouped = ssm.groups * ssm.state
    widths = dict(zip(parts, (ssm.inner, grouped, grouped), strict=True))
    convolved = {f"{name}.conv_state_{part}": (kept, size) for part, size in widths.items()}
    return {**convolved, f"{name}.ssm_state": (ssm.rank, ssm.state, ssm.inner // ssm.rank)}
