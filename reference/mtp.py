"""The input of a multi-token prediction block (DeepSeek-V3, arXiv 2412.19437, equation 21): h' = M
[RMSNorm(Emb(t_next)); RMSNorm(h)], in reference ops."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reference.embedding import embedding
from reference.linear import linear
from reference.rms_norm import rms_norm

Array = np.ndarray[Any, np.dtype[Any]]


def mtp_input(
    h: Array, following: Array, weights: Mapping[str, Any], norms: Mapping[str, Array], eps: float
) -> Array:
    """M [norm(embedding of the following token), norm(h)], of block 0.

    h [tokens, hidden], the main model's last hidden states; following int32 [tokens], the token
    after each -> float64 [tokens, hidden].
    """
    table, matrix = weights["token_embd.weight"], weights["blk.0.nextn.eh_proj.weight"]
    after = embedding(following, table.data, table.format)
    after = rms_norm(after, norms["blk.0.nextn.enorm.weight"], eps)
    behind = rms_norm(h, norms["blk.0.nextn.hnorm.weight"], eps)
    return linear(np.concatenate([after, behind], axis=1), matrix.data, matrix.format)
