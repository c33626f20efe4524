"""Every op there is, one row each."""

from reference import (
    activations,
    add_squares,
    arithmetic,
    attention,
    embedding,
    gated_activations,
    kv_write,
    linear,
    log_probabilities,
    quantise_activations,
    rms_norm,
    rope,
    softmax,
    weight_formats,
)
from reference.op import Op
from reference.samplers import (
    draw,
    dry,
    greedy,
    log_sum_exp,
    logit_bias,
    min_p,
    mirostat,
    penalties,
    temperature,
    top_k,
    top_n_sigma,
    top_p,
    typical,
    xtc,
)
from reference.schemes import float8, integers, linear_float8, linear_w8a8

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
        add_squares.OP,
        *weight_formats.OPS,
        *integers.OPS,
        *float8.OPS,
        linear_w8a8.OP,
        *linear_float8.OPS,
        logit_bias.OP,
        penalties.OP,
        dry.OP,
        top_n_sigma.OP,
        top_k.OP,
        typical.OP,
        top_p.OP,
        min_p.OP,
        xtc.OP,
        *temperature.OPS,
        *mirostat.OPS,
        log_sum_exp.OP,
        greedy.OP,
        draw.OP,
        *log_probabilities.OPS,
    )
}
