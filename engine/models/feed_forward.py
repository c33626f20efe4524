"""The feed-forward network of a block, for any family: one function for its computation and one for
its tensors. engine/passes/sparse.py makes it sparse."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from engine.config import ModelConfig
from engine.graph import Value
from engine.models import experts
from engine.models.family import Rows
from engine.models.network import Network
from engine.models.tensors import Tensors

PLACES = (".cpu", ".gpu")  # of neurons, by what gpu_idx has of them
GATED = ("swiglu", "geglu", "reglu", "squared_reglu", "drelu")


def tensors(config: ModelConfig, i: int) -> Tensors:
    """The tensors of block i, with dimensions (rows, elements)."""
    if config.experts and config.is_mixture(i):
        return experts.tensors(config, config.experts)
    hidden, ffn = config.hidden, config.ffn
    names = ("ffn_gate", "ffn_up") if config.activation in GATED else ("ffn_up",)
    found: Tensors = {f"{name}.weight": (ffn, hidden) for name in names}
    if config.transposed_down:
        found["ffn_down_t.weight"] = (ffn, hidden)
    else:
        found["ffn_down.weight"] = (hidden, ffn)
    if config.sparsity and i in config.sparsity.ranks:
        rank = config.sparsity.ranks[i]
        found |= {"fc1.weight": (rank, hidden), "fc2.weight": (ffn, rank)}
    return found


def joined_tensors(config: ModelConfig, i: int) -> Tensors:
    """The tensors of block i where ffn_up holds the rows of the gate, then those of up."""
    found = tensors(config, i)
    del found["ffn_gate.weight"]
    return found | {"ffn_up.weight": (2 * config.ffn, config.hidden)}


def joined_parts(config: ModelConfig) -> dict[str, Rows]:
    """Gates and ups of such tensors; the gate first, since up takes the tensor's own name."""
    return {
        f"blk.{i}.{name}.weight": Rows(f"blk.{i}.ffn_up.weight", first, config.ffn)
        for i in range(config.blocks)
        for name, first in (("ffn_gate", 0), ("ffn_up", config.ffn))
    }


def constants(config: ModelConfig) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays neither in the file nor computed by a node: the list of all neurons, which a dense
    network with a transposed down needs, and which gives the rows' places when all are in memory,
    and the neurons' devices."""
    if config.experts:
        return experts.constants(config.experts)
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
    """For each block and device of split neurons, the index of each row's neuron."""
    for i, part, numbers in _apart(config):
        slots = np.zeros(config.ffn, np.int32)
        slots[numbers] = np.arange(len(numbers), dtype=np.int32)
        yield i, part, slots


def _apart(config: ModelConfig) -> Iterator[tuple[int, str, np.ndarray[Any, Any]]]:
    """The neurons of each block and device, if they are split and there are any."""
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


def biases(config: ModelConfig) -> Tensors:
    """The optional biases of a block."""
    down = "ffn_down_t" if config.transposed_down else "ffn_down"
    rows = ("ffn_gate", "ffn_up") if config.activation in GATED else ("ffn_up",)
    own: Tensors = {f"{name}.bias": (config.ffn,) for name in rows}
    return own | {f"{down}.bias": (config.hidden,)}


def feed_forward(net: Network, i: int, x: Value) -> Value:
    """down(activation(gate(x), up(x))), or down(activation(up(x))) where there is no gate.

    x [tokens hidden] is normalised. Biases are added where the file has them. Of a mixture every
    expert is such a network (experts.py). -> [tokens hidden].
    """
    block, config, graph = f"blk.{i}", net.config, net.graph
    if config.experts and config.is_mixture(i):
        return experts.mixture(net, i, x, config.experts)
    label = f"{block}.{config.activation}"
    if config.activation in GATED:
        gate, up = (net.project(f"{block}.ffn_{name}", x) for name in ("gate", "up"))
        active = graph(config.activation, label, gate=gate, up=up)
    else:
        active = graph(config.activation, label, x=net.project(f"{block}.ffn_up", x))
    if not config.transposed_down:
        return net.project(f"{block}.ffn_down", active)
    down, rows, count = f"{block}.ffn_down_t", net.weights["ffn.rows"], net.weights["ffn.count"]
    weight = net.weights[f"{down}.weight"]
    out = graph("sparse_axpy", down, a=active, weight=weight, rows=rows, count=count, slots=rows)
    return net.biased(down, out)
