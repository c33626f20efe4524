"""What a GGUF file says of recurrent blocks, and how large their states are."""

import re
from dataclasses import dataclass

import numpy as np

from reference.op import Array

# Matrices that ops take as float32. A file has most of them with a channel's values side by side,
# [channels, values], and an op with the channels so, [values, channels].
_SMALL = re.compile(r"blk\.\d+\.(ssm_conv1d(_[xbcqkv])?\.weight|shortconv\.conv\.weight|ssm_[ad])")
_NORM = re.compile(r"blk\.\d+\.ssm_norm\.weight")
_OF_HEADS = re.compile(r"blk\.\d+\.attn_[qk]_norm\.weight")


def is_small(name: str) -> bool:
    """Whether a matrix is such a tensor: neither packed nor quantised."""
    return bool(_SMALL.fullmatch(name) or _NORM.fullmatch(name))


def as_ops_take_it(name: str, values: Array) -> Array:
    """A small tensor, or a vector, float32 as an op takes it; a norm's rows are groups, but heads'
    stand one after the other."""
    if _OF_HEADS.fullmatch(name):
        return values.reshape(-1)
    return np.ascontiguousarray(values.T if _SMALL.fullmatch(name) else values)


@dataclass(frozen=True, slots=True)
class Ssm:
    """The sizes of a recurrent block: `taps` of its convolution, `inner` channels, each with a
    `state` of so many numbers, `rank` of Mamba's step or else heads, `groups` of heads."""

    taps: int
    inner: int = 0
    state: int = 0
    rank: int = 0
    groups: int = 1

    @property
    def convolved(self) -> int:
        """Channels that Mamba 2's convolution has: those of x, B and C; or a delta net's: those of
        values, keys and queries."""
        return self.inner + 2 * self.groups * self.state


def states(architecture: str, ssm: Ssm, block: int) -> dict[str, tuple[int, ...]]:
    """The states of a recurrent block, by name, with the dimensions of one."""
    kept, name = ssm.taps - 1, f"blk.{block}"
    if architecture == "lfm2":
        return {f"{name}.conv_state": (kept, ssm.inner)}
    if architecture == "mamba":
        return {
            f"{name}.conv_state": (kept, ssm.inner),
            f"{name}.ssm_state": (ssm.state, ssm.inner),
        }
    parts = "xbc" if architecture == "mamba2" else "vkq"
    grouped = ssm.groups * ssm.state
    widths = dict(zip(parts, (ssm.inner, grouped, grouped), strict=True))
    convolved = {f"{name}.conv_state_{part}": (kept, size) for part, size in widths.items()}
    return {**convolved, f"{name}.ssm_state": (ssm.rank, ssm.state, ssm.inner // ssm.rank)}
