"""DuoAttention (Xiao et al., arXiv 2410.10819): retrieval heads keep all cells, streaming heads
only the first and the latest ones. Which heads are which is measured once per model."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.errors import ModelError
from engine.policies.policy import check_fields
from reference.cache.policies import streaming_heads
from reference.op import Array


@dataclass(frozen=True, slots=True)
class DuoAttention:
    """Streaming heads attend to the first `sinks` cells and the `recent` ones, the token's own
    included, and up to `stride` - 1 before these: windows begin at multiples of it, so that
    tokens of a prompt share their cells. `heads` is a file in the authors' format
    (full_attention_heads.tsv): a line for each block with a tab-separated number for each KV
    head. The lowest `sparsity` per cent of the heads stream.
    """

    sinks: int = 128
    recent: int = 256
    stride: int = 32
    sparsity: int = 50
    heads: str = ""

    @property
    def max_seen(self) -> int:
        """Most cells that a streaming head attends to."""
        return self.sinks + self.recent + self.stride - 1

    def __post_init__(self) -> None:
        """Raise `ModelError` for invalid sizes."""
        check_fields(self)
        if min(self.recent, self.stride) < 1 or self.sparsity > 100:
            raise ModelError(
                f"DuoAttention: recent is {self.recent}, stride {self.stride} and sparsity"
                f" {self.sparsity}: want recent and stride of at least 1, and sparsity of at most"
                " 100 per cent"
            )

    def streaming(self, blocks: int, kv_heads: int) -> Array:
        """Which heads of a model stream, bool [blocks, kv_heads]; raises `ModelError` if the file
        is for another model."""
        if not self.heads:
            raise ModelError(
                "kv_policy DuoAttention: the streaming heads are not given: want heads=FILE,"
                " the authors' full_attention_heads.tsv or what `python -m bench.retrieval_heads`"
                " writes"
            )
        alphas = _file(Path(self.heads))
        if alphas.shape != (blocks, kv_heads):
            raise ModelError(
                f"{self.heads}: numbers of {' x '.join(map(str, alphas.shape))} blocks and KV"
                f" heads, the model has {blocks} x {kv_heads}"
            )
        return streaming_heads(alphas, self.sparsity / 100)


def _file(path: Path) -> Array:
    """Read the numbers, by block and head."""
    try:
        alphas = np.loadtxt(path, np.float64, delimiter="\t", ndmin=2)
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not a table of numbers by block and head: {error}") from None
    if not np.isfinite(alphas).all():
        raise ModelError(f"{path}: not all of its numbers are finite")
    return alphas
