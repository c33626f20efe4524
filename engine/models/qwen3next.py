"""Qwen 3 Next (Qwen team, 2025) and Qwen 3.5 (2026), dense or of experts: three blocks of four are
gated delta nets (Yang, Kautz and Hatamizadeh, arXiv 2412.06464), the fourth attends.

A gated delta net convolves its queries, keys and values over the last few tokens and gives queries
and keys the length of 1; the state of each head forgets by a gate, and what it has under a key
becomes the value, by another gate. What is read is normalised by head and gated by z. A block that
attends is Qwen 3's, with rope in a part of a head, but for a gate on what each head has read, whose
rows the file has behind that head's queries.

Heads of values are more than those of queries and keys. In Qwen 3 Next those in a row have one key,
and the rows of both gates are by key; in Qwen 3.5 every so many-th has it.
"""

from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import experts, feed_forward
from engine.models.blocks import logits_of_blocks
from engine.models.family import Family, Rows
from engine.models.mamba import convolved, routes, split
from engine.models.network import Network
from engine.models.tensors import (
    Constants,
    Tensors,
    attention_tensors,
    qk_norms,
    rope_constants,
)
from engine.recurrent import Ssm

LENGTHS = {"q": -1.0, "k": -0.5}  # of queries and keys, as powers of a head's size


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions ([experts], rows, elements)."""
    return {
        "attn_norm.weight": (config.hidden,),
        **(_attending(config) if config.has_attention(i) else _delta_net(config)),
        "post_attention_norm.weight": (config.hidden,),
        **feed_forward.tensors(config, i),
    }


def _attending(config: ModelConfig) -> Tensors:
    """A block with attention, whose gate's rows are among the queries'."""
    queries = {"attn_q.weight": (2 * config.heads * config.head_dim, config.hidden)}
    return attention_tensors(config) | queries | qk_norms(config)


def _delta_net(config: ModelConfig) -> Tensors:
    """A block that is a gated delta net."""
    ssm, hidden = _ssm(config), config.hidden
    gates = ("ssm_ba",) if _in_a_row(config) else ("ssm_beta", "ssm_alpha")
    return {
        "attn_qkv.weight": (ssm.conv_channels, hidden),
        "attn_gate.weight": (ssm.inner, hidden),
        "ssm_conv1d.weight": (ssm.conv_channels, ssm.taps),
        **{f"{name}.weight": (2 * ssm.rank // len(gates), hidden) for name in gates},
        "ssm_dt.bias": (ssm.rank,),
        "ssm_a": (ssm.rank,),
        "ssm_norm.weight": (ssm.state,),
        "ssm_out.weight": (hidden, ssm.inner),
    }


def _ssm(config: ModelConfig) -> Ssm:
    assert config.ssm
    return config.ssm


def _sizes(config: ModelConfig) -> dict[str, int]:
    """Rows of queries, keys and values, in the file's order."""
    ssm = _ssm(config)
    return {"q": ssm.groups * ssm.state, "k": ssm.groups * ssm.state, "v": ssm.inner}


def _in_a_row(config: ModelConfig) -> bool:
    """Whether heads of one key follow one another."""
    return config.architecture == "qwen3next"


def parts(config: ModelConfig) -> dict[str, Rows]:
    """Queries, keys and values of delta nets; what rows of two kinds by head or by key give."""
    ssm, found, sizes = _ssm(config), dict[str, Rows](), _sizes(config)
    shared, head_dim = ssm.rank // ssm.groups, config.head_dim
    for i in range(config.blocks):
        block = f"blk.{i}"
        if config.has_attention(i):
            # the gate before the queries, which take the tensor's own name
            found |= _in_turn(f"{block}.attn_q", ("attn_q", "attn_gate"), config.heads, head_dim)
            continue
        found |= split(f"{block}.attn_qkv", sizes) | split(f"{block}.ssm_conv1d", sizes)
        if _in_a_row(config):
            found |= _in_turn(f"{block}.ssm_ba", ("ssm_beta", "ssm_alpha"), ssm.groups, shared)
    return found


def _in_turn(name: str, kinds: tuple[str, str], times: int, each: int) -> dict[str, Rows]:
    """Weights of two kinds, of which NAME.weight has `each` rows of the one, as many of the other,
    and so on, so many times; the second first."""
    block = name.rpartition(".")[0]
    return {
        f"{block}.{kind}.weight": Rows(f"{name}.weight", number * each, times * each, each)
        for number, kind in reversed(list(enumerate(kinds)))
    }


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> Constants:
    """Rope's; biases of no convolution, the lengths of queries and keys, and which of them a head
    has."""
    ssm, sizes = _ssm(config), _sizes(config)
    heads = np.arange(ssm.rank, dtype=np.int32)
    shared = ssm.rank // ssm.groups
    return {
        **rope_constants(config, divisors),
        **{f"delta.no_bias_{n}": np.zeros(size, np.float32) for n, size in sizes.items()},
        **{f"delta.{n}": np.full(ssm.state, ssm.state**p, np.float32) for n, p in LENGTHS.items()},
        "delta.group_of": heads // shared if _in_a_row(config) else heads % ssm.groups,
    }


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    x, rotation = net.embedded(), net.rotation()

    def mixed(i: int, h: Value) -> Value:
        attends = net.config.has_attention(i)
        return net.attention(i, h, rotation) if attends else delta_net(net, f"blk.{i}", h)

    return logits_of_blocks(net, x, mixed)


def delta_net(net: Network, block: str, h: Value) -> Value:
    """A gated delta net's mixer [tokens hidden]."""
    config, graph, weights = net.config, net.graph, net.weights
    ssm, tokens, state = _ssm(config), net.inputs.tokens.dims[0], net.caches[f"{block}.ssm_state"]

    def entering(name: str, heads: int) -> Value:
        x = net.project(f"{block}.attn_qkv_{name}", h)
        x = convolved(net, block, x, name, weights[f"delta.no_bias_{name}"])
        x = graph("silu", f"{block}.silu_{name}", x=x)
        if name in LENGTHS:  # x / sqrt(sum of squares + eps), by its mean of squares
            rows, eps = x.view(f"{tokens}*{heads}", ssm.state), config.norm_eps / ssm.state
            label, length = f"{block}.{name}_unit", weights[f"delta.{name}"]
            x = graph("rms_norm", label, x=rows, weight=length, eps=eps)
        return x.view(tokens, heads, ssm.state)

    q, k = (entering(name, ssm.groups) for name in "qk")
    v, z = entering("v", ssm.rank), net.project(f"{block}.attn_gate", h)
    beta = net.project(f"{block}.ssm_beta", h)
    alpha = net.project(f"{block}.ssm_alpha", h)
    dt = graph("softplus", f"{block}.dt", x=net.biased(f"{block}.ssm_dt", alpha))
    out, _ = graph.multi_output(
        "gated_delta_net",
        f"{block}.delta_net",
        into={"states": state},
        q=q,
        k=k,
        v=v,
        g=graph("mul_columns", f"{block}.decay", x=dt, factors=weights[f"{block}.ssm_a"]),
        beta=graph("sigmoid", f"{block}.beta", x=beta),
        group_of=weights["delta.group_of"],
        before=state,
        **routes(net.inputs),
    )
    y = net.rms_norm(f"{block}.ssm_norm", out.view(f"{tokens}*{ssm.rank}", ssm.state))
    y = graph("swiglu", f"{block}.gated", gate=z, up=y.view(tokens, ssm.inner))
    return net.project(f"{block}.ssm_out", y)


FAMILY = Family(block, build, experts.optional, parts=parts, constants=constants)
