"""Mamba (Gu and Dao, arXiv 2312.00752) and Mamba 2 (Dao and Gu, arXiv 2405.21060): no attention, no
positions, no feed-forward network. What a block knows of the text is its state.

x and the gate z are projections of the block's input. x is convolved over its last tokens; the scan
moves the state on and reads it. In Mamba the step dt, what enters (B) and what is read (C) are
projections of the convolved x, and each channel's numbers decay at rates of their own. In Mamba 2
they are projections of the block's input, B and C are convolved with x, and a head has one rate.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Value
from engine.models.family import Family, Rows, output
from engine.models.network import Network, StepInputs
from engine.models.tensors import Constants, Tensors
from engine.recurrent import Ssm


def block(config: ModelConfig, i: int) -> Tensors:
    """What block i needs, with dimensions (rows, elements)."""
    hidden, ssm = config.hidden, config.ssm
    assert ssm
    own = _first(ssm, hidden) if config.architecture == "mamba" else _second(ssm, hidden)
    return {"attn_norm.weight": (hidden,), **own, "ssm_out.weight": (hidden, ssm.inner)}


def _first(ssm: Ssm, hidden: int) -> Tensors:
    """A block of Mamba."""
    return {
        "ssm_in.weight": (2 * ssm.inner, hidden),
        "ssm_conv1d.weight": (ssm.inner, ssm.taps),
        "ssm_conv1d.bias": (ssm.inner,),
        "ssm_x.weight": (ssm.rank + 2 * ssm.state, ssm.inner),
        "ssm_dt.weight": (ssm.inner, ssm.rank),
        "ssm_dt.bias": (ssm.inner,),
        "ssm_a": (ssm.inner, ssm.state),
        "ssm_d": (ssm.inner,),
    }


def _second(ssm: Ssm, hidden: int) -> Tensors:
    """A block of Mamba 2."""
    return {
        "ssm_in.weight": (ssm.inner + ssm.conv_channels + ssm.rank, hidden),
        "ssm_conv1d.weight": (ssm.conv_channels, ssm.taps),
        "ssm_conv1d.bias": (ssm.conv_channels,),
        "ssm_dt.bias": (ssm.rank,),
        "ssm_a": (ssm.rank, 1),
        "ssm_d": (ssm.rank, 1),
        "ssm_norm.weight": (ssm.groups, ssm.inner // ssm.groups),
    }


def parts(config: ModelConfig) -> dict[str, Rows]:
    """Parts of projections with several outputs."""
    ssm = config.ssm
    assert ssm
    inner, grouped = ssm.inner, ssm.groups * ssm.state
    found: dict[str, Rows] = {}
    for block in (f"blk.{i}" for i in sorted(config.recurrent)):
        if config.architecture == "mamba":
            found |= split(f"{block}.ssm_in", {"x": inner, "z": inner})
            found |= split(f"{block}.ssm_x", {"dt": ssm.rank, "b": ssm.state, "c": ssm.state})
        else:
            entering = {"x": inner, "b": grouped, "c": grouped}
            found |= split(f"{block}.ssm_in", {"z": inner, **entering, "dt": ssm.rank})
            found |= split(f"{block}.ssm_conv1d", entering, ("weight", "bias"))
    return found


def split(
    name: str, sizes: Mapping[str, int], kinds: Sequence[str] = ("weight",)
) -> dict[str, Rows]:
    """NAME_PART.weight of so many rows of NAME.weight, consecutively."""
    ends = np.cumsum([0, *sizes.values()]).tolist()
    return {
        f"{name}_{part}.{kind}": Rows(f"{name}.{kind}", first, size)
        for (part, size), first in zip(sizes.items(), ends, strict=False)
        for kind in kinds
    }


def constants(config: ModelConfig, divisors: np.ndarray[Any, Any] | None) -> Constants:
    """Norms of a group's channels, of which each group has its own weight."""
    assert config.ssm
    if config.ssm.groups == 1:
        return {}
    return {"ssm_norm.ones": np.ones(config.ssm.inner // config.ssm.groups, np.float32)}


def build(net: Network) -> Value:
    """The nodes of one step; its logits [outputs, vocab]."""
    mixed = mamba if net.config.architecture == "mamba" else mamba2
    x = net.embedded()
    for i in range(net.config.blocks):
        h = net.rms_norm(f"blk.{i}.attn_norm", x)
        x = net.add(f"blk.{i}.residual", x, mixed(net, f"blk.{i}", h))
    return net.logits(net.rms_norm("output_norm", net.wanted(x)))


def mamba(net: Network, block: str, h: Value) -> Value:
    """Mamba's mixer [tokens hidden]."""
    x, z = (net.project(f"{block}.ssm_in_{n}", h) for n in "xz")
    x = net.graph("silu", f"{block}.silu", x=convolved(net, block, x))
    low, b, c = (net.project(f"{block}.ssm_x_{n}", x) for n in ("dt", "b", "c"))
    dt = net.graph("softplus", f"{block}.dt", x=net.project(f"{block}.ssm_dt", low))
    y = scanned(net, "ssm_scan", block, x, dt, b, c)
    gated = net.graph("swiglu", f"{block}.gated", gate=z, up=y)
    return net.project(f"{block}.ssm_out", gated)


def mamba2(net: Network, block: str, h: Value) -> Value:
    """Mamba 2's mixer [tokens hidden]: gated, then normalised group by group."""
    ssm, graph, tokens = net.config.ssm, net.graph, net.inputs.tokens.dims[0]
    assert ssm
    names = ("z", "x", "b", "c", "dt")
    z, *entering, dt = (net.project(f"{block}.ssm_in_{n}", h) for n in names)
    x, b, c = (
        graph("silu", f"{block}.silu_{n}", x=convolved(net, block, e, n))
        for n, e in zip("xbc", entering, strict=True)
    )
    dt = graph("softplus", f"{block}.dt", x=net.biased(f"{block}.ssm_dt", dt))
    x = x.view(tokens, ssm.rank, ssm.inner // ssm.rank)
    b, c = (each.view(tokens, ssm.groups, ssm.state) for each in (b, c))
    y = scanned(net, "ssm_scan_heads", block, x, dt, b, c)
    y = graph("swiglu", f"{block}.gated", gate=z, up=y.view(tokens, ssm.inner))
    name, weight = f"{block}.ssm_norm", net.weights[f"{block}.ssm_norm.weight"].view(ssm.inner)
    if ssm.groups == 1:
        y = net.rms_norm(name, y, weight)
    else:
        rows = y.view(f"{tokens}*{ssm.groups}", ssm.inner // ssm.groups)
        y = net.rms_norm(name, rows, net.weights["ssm_norm.ones"]).view(tokens, ssm.inner)
        y = graph("mul_columns", f"{name}.weight", x=y, factors=weight)
    return net.project(f"{block}.ssm_out", y)


def convolved(
    net: Network, block: str, x: Value, part: str = "", bias: Value | None = None
) -> Value:
    """x [tokens channels] convolved over its last tokens, earlier ones from the block's state; a
    `part` of the channels has weights and a state of its own. The bias is the file's, or the given
    one."""
    part = part and f"_{part}"
    state = net.caches[f"{block}.conv_state{part}"]
    out, _ = net.graph.multi_output(
        "causal_conv1d",
        f"{block}.conv{part}",
        into={"states": state},
        x=x,
        weight=net.weights[f"{block}.ssm_conv1d{part}.weight"],
        bias=bias or net.weights[f"{block}.ssm_conv1d{part}.bias"],
        before=state,
        **routes(net.inputs),
    )
    return out


def scanned(net: Network, op: str, block: str, x: Value, dt: Value, b: Value, c: Value) -> Value:
    """The scan's output for x, with the block's state advanced."""
    state = net.caches[f"{block}.ssm_state"]
    a, d = net.weights[f"{block}.ssm_a"], net.weights[f"{block}.ssm_d"]
    if op == "ssm_scan_heads":
        a, d = a.view(x.dims[1]), d.view(x.dims[1])
    own = {"x": x, "dt": dt, "a": a, "b": b, "c": c, "d": d, "before": state, **routes(net.inputs)}
    out, _ = net.graph.multi_output(op, f"{block}.scan", into={"states": state}, **own)
    return out


def routes(inputs: StepInputs) -> dict[str, Value]:
    """The cells from which the step's tokens read their states and to which they write them."""
    assert inputs.sources
    assert inputs.targets
    return {"sources": inputs.sources, "targets": inputs.targets}


FAMILY = Family(block, build, optional=output, parts=parts, constants=constants)
