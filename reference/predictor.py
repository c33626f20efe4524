"""PowerInfer's predictor of active neurons: two small matrices (arXiv 2312.12456)."""

from reference.activations import relu
from reference.linear import linear
from reference.op import Array


def predictor(p: Array, fc1: Array, fc2: Array, formats: tuple[str, str]) -> Array:
    """logits = fc2 . relu(fc1 . p): raw, no sigmoid; threshold_mask decides.

    p [tokens, hidden], what the block's FFN is added to (its input before the norm);
    fc1 uint8 [rank, row_bytes], fc2 uint8 [neurons, row_bytes] -> float64 [tokens, neurons].
    The engine runs it as the three ops that it consists of.
    """
    return linear(relu(linear(p, fc1, formats[0])), fc2, formats[1])
