"""The table of all ops, one row each; ops of installed packages are found by name."""

from functools import cache

from reference import (
    activations,
    add_squares,
    arithmetic,
    embedding,
    experts,
    gated_activations,
    heads,
    layer_norm,
    linear,
    linear_experts,
    log_probabilities,
    quantise_activations,
    rms_norm,
    rope,
    softmax,
    verification,
    weight_formats,
)
from reference.attention import (
    attention,
    attention_kivi,
    attention_minicache,
    attention_received,
    pattern_attention,
    prompt_patterns,
)
from reference.cache import cell_scores, keep_cells, kivi, kv_write, minicache, pages
from reference.op import Op
from reference.packages import Package, find_ops
from reference.recurrent import causal_conv1d, gated_delta_net, ssm_scan
from reference.samplers import (
    argmax,
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
from reference.sparse import neuron_masks, sparse_axpy, sparse_linear


class Ops(dict[str, Op]):
    """The ops by name: iteration lists ours, and lookup of other names searches those of installed
    packages."""

    def __missing__(self, name: str) -> Op:
        return package_ops()[0][name]


OPS = Ops(
    (op.name, op)
    for op in (
        embedding.OP,
        rms_norm.OP,
        layer_norm.OP,
        quantise_activations.OP,
        quantise_activations.OP_256,
        linear.OP,
        *rope.OPS,
        kv_write.OP,
        attention.OP,
        attention_received.OP,
        *kivi.OPS,
        attention_kivi.OP,
        *minicache.OPS,
        attention_minicache.OP,
        *cell_scores.OPS,
        *keep_cells.OPS,
        *pages.OPS,
        *prompt_patterns.OPS,
        pattern_attention.OP,
        softmax.OP,
        *activations.OPS,
        *gated_activations.OPS,
        *arithmetic.OPS,
        *neuron_masks.OPS,
        sparse_linear.OP,
        sparse_axpy.OP,
        add_squares.OP,
        add_squares.OP_BY_EXPERT,
        causal_conv1d.OP,
        *ssm_scan.OPS,
        gated_delta_net.OP,
        *experts.OPS,
        linear_experts.OP,
        *heads.OPS,
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
        argmax.OP,
        log_sum_exp.OP,
        greedy.OP,
        draw.OP,
        *log_probabilities.OPS,
        *verification.OPS,
    )
)


@cache
def package_ops() -> tuple[dict[str, Op], dict[str, Package], list[str]]:
    """The ops of installed packages by name, and the package of each; and complaints about those
    that fail. Imports them."""
    return find_ops(OPS)


def find_op(name: str) -> Op:
    """The op of this name, ours or a package's; ValueError lists the known names."""
    try:
        return OPS[name]
    except KeyError:
        ops, _, complaints = package_ops()
        why = "".join(f"; {complaint}" for complaint in complaints)
        names = ", ".join((*OPS, *ops))
        raise ValueError(f"there is no op {name!r}: {names}{why}") from None
