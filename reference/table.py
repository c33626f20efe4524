"""Every op there is, one row each."""

from reference import (
    activations,
    arithmetic,
    attention,
    embedding,
    gated_activations,
    kv_write,
    linear,
    quantise_activations,
    rms_norm,
    rope,
    softmax,
    weight_formats,
)
from reference.op import Op

OPS: dict[str, Op] = {
    op.name: op
    for op in (
        embedding.OP,
        rms_norm.OP,
        quantise_activations.OP,
        linear.OP,
        *rope.OPS,
        kv_write.OP,
        attention.OP,
        softmax.OP,
        *activations.OPS,
        *gated_activations.OPS,
        *arithmetic.OPS,
        *weight_formats.OPS,
    )
}
