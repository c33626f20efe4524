"""DuoAttention (Xiao et al., arXiv 2410.10819): some heads look far back, and keep all; the others
stream, and keep the first cells and the latest. Which do what is measured once for a model."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.errors import ModelError
from engine.policies.policy import demand_numbers
from reference.cache.policies import streaming_heads
from reference.op import Array


@dataclass(frozen=True, slots=True)
class DuoAttention:
    """Streaming heads see the first `sinks` cells and the `recent` ones, a token's own among them,
    and up to `stride` - 1 before these: windows begin at multiples of it, so that tokens of a
    prompt read the same cells. In the file `heads` is a line for each block, and in it a number for
    each head of keys, tabs between: the lowest `sparsity` per cent are of heads that stream. So
    are the authors' files, full_attention_heads.tsv.
    """

    sinks: int = 128
    recent: int = 256
    stride: int = 32
    sparsity: int = 50
    heads: str = ""

    @property
    def seen(self) -> int:
        """Cells that a streaming head sees at most."""
        return self.sinks + self.recent + self.stride - 1

    def __post_init__(self) -> None:
        """Raise ModelError for what are no numbers of cells, or no per cent."""
        demand_numbers(self)
        if min(self.recent, self.stride) < 1 or self.sparsity > 100:
            raise ModelError(
                f"DuoAttention: recent is {self.recent}, stride {self.stride} and sparsity"
                f" {self.sparsity}: want a cell, a token's own, a step of one at least, and a per"
                " cent of the heads"
            )

    def streaming(self, blocks: int, kv_heads: int) -> Array:
        """Which heads of a model stream, bool [blocks, kv_heads]; ModelError where the file is not
        of such a model."""
        if not self.heads:
            raise ModelError(
                "kv_policy DuoAttention: which heads look far back is not said: want heads=FILE,"
                " the authors' full_attention_heads.tsv or what `python -m bench.retrieval_heads`"
                " writes"
            )
        alphas = _file(Path(self.heads))
        if alphas.shape != (blocks, kv_heads):
            raise ModelError(
                f"{self.heads}: numbers of {' x '.join(map(str, alphas.shape))} blocks and heads of"
                f" keys, the model has {blocks} x {kv_heads}"
            )
        return streaming_heads(alphas, self.sparsity / 100)


def _file(path: Path) -> Array:
    """Numbers by block and head."""
    try:
        alphas = np.loadtxt(path, np.float64, delimiter="\t", ndmin=2)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: no file of numbers by block and head: {error}") from None
    if not np.isfinite(alphas).all():
        raise ModelError(f"{path}: not all of its numbers are finite")
    return alphas
