"""The feed-forward network of a block, whatever the family: what it does with its input is one
function here, dense or sparse, and which tensors it needs is another."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Graph, Value
from engine.models.layers import biased, project

PLACES = (".cpu", ".gpu")  # of neurons, by what gpu_idx has of them
TARGETS = ("cpu", "cuda")
GATED = ("swiglu", "reglu", "squared_reglu", "drelu")
LEAST = float(np.finfo(np.float32).smallest_subnormal)  # of the numbers that relu leaves


def expected_tensors(config: ModelConfig, i: int) -> dict[str, tuple[int, ...]]:
    """What block i needs, with dimensions (rows, elements)."""
    block, hidden, ffn = f"blk.{i}", config.hidden, config.ffn
    names = ("ffn_gate", "ffn_up") if config.activation in GATED else ("ffn_up",)
    tensors: dict[str, tuple[int, ...]] = {f"{block}.{n}.weight": (ffn, hidden) for n in names}
    if config.transposed_down:
        tensors[f"{block}.ffn_down_t.weight"] = (ffn, hidden)
    else:
        tensors[f"{block}.ffn_down.weight"] = (hidden, ffn)
    if config.sparsity and i in config.sparsity.ranks:
        rank = config.sparsity.ranks[i]
        tensors[f"{block}.fc1.weight"] = (rank, hidden)
        tensors[f"{block}.fc2.weight"] = (ffn, rank)
    return tensors


def constants(config: ModelConfig) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays that are neither in the file nor computed by a node: the list of all neurons, which a
    dense network with a transposed down needs and which says where rows lie when all of them are in
    memory, and where neurons live."""
    if not config.transposed_down:
        return {}
    places = config.sparsity.places if config.sparsity else {}
    return {
        "ffn.rows": np.arange(config.ffn, dtype=np.int32),
        "ffn.count": np.array([config.ffn], np.int32),
        **{f"blk.{i}.gpu_idx": idx for i, idx in places.items()},
        **{f"blk.{i}.slots{part}": s for i, part, s in _slots(config)},
    }


def _slots(config: ModelConfig) -> Iterator[tuple[int, str, np.ndarray[Any, Any]]]:
    """For each block and place of neurons that are apart, which of its rows is which neuron's."""
    for i, part, numbers in _apart(config):
        slots = np.zeros(config.ffn, np.int32)
        slots[numbers] = np.arange(len(numbers), dtype=np.int32)
        yield i, part, slots


def _apart(config: ModelConfig) -> Iterator[tuple[int, str, np.ndarray[Any, Any]]]:
    """The neurons of each block and place, if they are apart and there are any."""
    if config.sparsity and config.sparsity.apart:
        for i in config.sparsity.ranks:
            for place, part in enumerate(PLACES):
                numbers = np.flatnonzero(config.sparsity.places[i] == place)
                if len(numbers):
                    yield i, part, numbers


def picked(config: ModelConfig) -> dict[str, tuple[str, np.ndarray[Any, Any]]]:
    """Weights of the graph that are some neurons' rows of a tensor of the file."""
    gates = ("ffn_gate",) if config.activation in GATED else ()
    return {
        f"blk.{i}.{name}.weight{part}": (f"blk.{i}.{name}.weight", numbers)
        for i, part, numbers in _apart(config)
        for name in (*gates, "ffn_up", "ffn_down_t")
    }


def biases(config: ModelConfig, i: int) -> dict[str, tuple[int, ...]]:
    """Those of block i, which are added where the file has them."""
    down = "ffn_down_t" if config.transposed_down else "ffn_down"
    return {f"blk.{i}.ffn_up.bias": (config.ffn,), f"blk.{i}.{down}.bias": (config.hidden,)}


def feed_forward(
    graph: Graph,
    i: int,
    x: Value,
    residual: Value,
    weights: Mapping[str, Value],
    config: ModelConfig,
) -> Value:
    """down(activation(gate(x), up(x))), or down(activation(up(x))) where there is no gate.

    x [tokens hidden] is normalised; `residual` [tokens hidden], what it was normalised from, is
    what predictors of a sparse network look at. Biases are added where the file has them.
    -> [tokens hidden].
    """
    if config.sparsity and i in config.sparsity.ranks:
        return _sparse(graph, f"blk.{i}", x, residual, weights, config)
    block = f"blk.{i}"
    label = f"{block}.{config.activation}"
    if config.activation in GATED:
        gate, up = (project(graph, weights, f"{block}.ffn_{n}", x) for n in ("gate", "up"))
        active = graph(config.activation, label, gate=gate, up=up)
    else:
        active = graph(config.activation, label, x=project(graph, weights, f"{block}.ffn_up", x))
    if not config.transposed_down:
        return project(graph, weights, f"{block}.ffn_down", active)
    every = {"rows": weights["ffn.rows"], "count": weights["ffn.count"]}
    return _down(graph, block, active, every, weights)


def _sparse(
    graph: Graph,
    block: str,
    x: Value,
    residual: Value,
    weights: Mapping[str, Value],
    config: ModelConfig,
) -> Value:
    """The neurons that the predictor names; of these, where there is a gate, up of those alone
    whose gate relu leaves, since the others add nothing. Neurons that live apart are computed apart
    and come together before down, so that its sum is the same."""
    sparsity = config.sparsity
    assert sparsity is not None
    inner = project(graph, weights, f"{block}.fc1", residual)
    inner = graph("relu", f"{block}.fc1_relu", x=inner)
    logits = project(graph, weights, f"{block}.fc2", inner)
    mask = graph("threshold_mask", f"{block}.mask", logits=logits, threshold=sparsity.threshold)
    if sparsity.union:
        mask = graph("union_mask", f"{block}.union", mask=mask)
    places = weights.get(f"{block}.gpu_idx")
    if sparsity.apart:
        return _side_by_side(graph, block, x, mask, weights, config)
    active = _active(graph, f"{block}.active", mask)
    if places is None:
        fired = _fired(graph, block, "", x, active, weights, config)
        return _down(graph, block, fired, active, weights)
    parts = []
    for part in PLACES:
        of_part = _living(graph, block, part, mask, weights)
        parts.append(_fired(graph, block, part, x, of_part, weights, config))
    fired = graph("add", f"{block}.fired", x=parts[0], y=parts[1])  # one of them is zero
    return _down(graph, block, fired, active, weights)


def _side_by_side(
    graph: Graph,
    block: str,
    x: Value,
    mask: Value,
    weights: Mapping[str, Value],
    config: ModelConfig,
) -> Value:
    """Neurons of each place computed there, down included, the GPU's first, so that it is at work
    while the CPU is."""
    sums = []
    for part, target in reversed(list(zip(PLACES, TARGETS, strict=True))):
        if f"{block}.slots{part}" not in weights:
            continue
        own = dict(weights) | {"ffn.rows": weights[f"{block}.slots{part}"]}
        for name in ("ffn_gate", "ffn_up", "ffn_down_t"):
            if f"{block}.{name}.weight{part}" in weights:
                own[f"{block}.{name}.weight"] = weights[f"{block}.{name}.weight{part}"]
        with graph.on(target):
            of_part = _living(graph, block, part, mask, weights)
            fired = _fired(graph, block, part, x, of_part, own, config)
            sums.append(_axpy(graph, block, part, fired, of_part, own))
    whole = graph("add", f"{block}.sides", x=sums[0], y=sums[1]) if len(sums) > 1 else sums[0]
    return biased(graph, weights, f"{block}.ffn_down_t", whole)


def _living(
    graph: Graph, block: str, part: str, mask: Value, weights: Mapping[str, Value]
) -> dict[str, Value]:
    """The active neurons that live at a place."""
    places, place = weights[f"{block}.gpu_idx"], float(PLACES.index(part))
    own = graph("neuron_split", f"{block}.mask{part}", mask=mask, places=places, place=place)
    return _active(graph, f"{block}.active{part}", own)


def _fired(
    graph: Graph,
    block: str,
    part: str,
    x: Value,
    active: Mapping[str, Value],
    weights: Mapping[str, Value],
    config: ModelConfig,
) -> Value:
    """The activations of the active neurons [tokens ffn], zero for the others."""
    gated = config.activation in GATED
    label = f"{block}.{config.activation}{part}"
    if not gated:
        up = _rows(graph, f"{block}.ffn_up", part, x, active, weights)
        if f"{block}.ffn_up.bias" in weights:  # was added to inactive neurons too
            up = graph("where_active", f"{block}.ffn_up_active{part}", x=up, mask=active["mask"])
        return graph(config.activation, label, x=up)
    gate = _rows(graph, f"{block}.ffn_gate", part, x, active, weights)
    open_ = graph("threshold_mask", f"{block}.open{part}", logits=gate, threshold=LEAST)
    of_open = _active(graph, f"{block}.open{part}", open_)
    up = _rows(graph, f"{block}.ffn_up", part, x, of_open, weights)
    return graph(config.activation, label, gate=gate, up=up)


def _active(graph: Graph, label: str, mask: Value) -> dict[str, Value]:
    """The mask with the rows that it names."""
    rows, count = graph.several("active_rows", f"{label}_rows", mask=mask)
    return {"mask": mask, "rows": rows, "count": count}


def _rows(
    graph: Graph,
    name: str,
    part: str,
    x: Value,
    active: Mapping[str, Value],
    weights: Mapping[str, Value],
) -> Value:
    """The tensor's rows that are active."""
    weight, slots = weights[f"{name}.weight"], weights["ffn.rows"]
    out = graph("sparse_linear", f"{name}{part}", x=x, weight=weight, slots=slots, **active)
    return biased(graph, weights, name, out, part)


def _down(
    graph: Graph,
    block: str,
    fired: Value,
    active: Mapping[str, Value],
    weights: Mapping[str, Value],
) -> Value:
    out = _axpy(graph, block, "", fired, active, weights)
    return biased(graph, weights, f"{block}.ffn_down_t", out)


def _axpy(
    graph: Graph,
    block: str,
    part: str,
    fired: Value,
    active: Mapping[str, Value],
    weights: Mapping[str, Value],
) -> Value:
    """The active neurons' sum."""
    name = f"{block}.ffn_down_t"
    return graph(
        "sparse_axpy",
        f"{name}{part}",
        a=fired,
        weight=weights[f"{name}.weight"],
        rows=active["rows"],
        count=active["count"],
        slots=weights["ffn.rows"],
    )
