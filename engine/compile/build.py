"""From a file to the graph of a step: what a family builds, transformed by the passes."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import numpy as np

from engine.cache.cells import Cells
from engine.config import ModelConfig, ModelError
from engine.gguf.file import GGUFFile
from engine.gpu.memory import DeviceRows
from engine.graph import Graph, Value
from engine.model_info import ModelInfo
from engine.models import feed_forward, mtp
from engine.models.family import Family
from engine.models.network import Network, StepInputs
from engine.models.table import parts_of
from engine.options import Options
from engine.passes import Memory, Pass, limits_of
from engine.passes.keep_hidden import keep_hidden
from engine.passes.sparse import sparse
from engine.recurrent import is_small, to_op_layout
from kernels.cpu.formats.packing import aligned_zeros
from reference.formats import FORMATS
from reference.op import DTYPES, Array

BESIDE = tuple(f".{part}_{kind}" for part in "kv" for kind in ("pages", "streaming"))
Kept = dict[str, Array | DeviceRows]


@dataclass(frozen=True, slots=True)
class Built:
    """A model's step as a graph, the memory of its values by name, and the name of its result.

    `inputs` are written before a step; `caches` hold keys and values, and `states` recurrent
    states, from step to step, in the memory of the device that runs their block; `pages` hold what
    is quantised to two bits, one row each, or what streaming heads see, in the same place.
    """

    config: ModelConfig
    graph: Graph
    memory: Memory
    inputs: Mapping[str, Array]
    caches: Kept
    states: Kept
    logits: Value
    pages: Kept = field(default_factory=dict)

    @property
    def limits(self) -> dict[str, int]:
        """The largest sizes of a step."""
        return limits_of(self.memory)

    @property
    def apart(self) -> bool:
        """Whether the CPU computes neurons of its own that never move."""
        return self.config.sparsity is not None and self.config.sparsity.apart


def build(
    file: GGUFFile,
    model_info: ModelInfo,
    config: ModelConfig,
    cells: Cells,
    limits: Mapping[str, int],
    options: Options,
    passes: Sequence[Pass],
) -> Built:
    """The model's graph as its family builds it, made sparse where the config says so, after all
    passes."""
    family, given = model_info.family, _inputs_of(cells)
    own = {f"tokens.{i}": given["tokens"] for i in range(config.blocks) if config.per_layer}
    own = {name: replace(value, name=name) for name, value in own.items()}
    lasting = cells.method.persistent_inputs
    inputs = {
        name: lasting[name] if name in lasting else np.zeros(value.sizes(limits), np.int32)
        for name, value in (given | own).items()
    }
    memory = dict(inputs)
    known = family.expected_tensors(config) | family.optional_tensors(config)
    weights = _weights_of(file, family, config, memory, cells.capacity, known)
    caches = _caches_of(config, options.cell_format, cells.method.rows)
    states = _states_of(config, cells)
    for name, cache in (caches | states).items():
        memory[name] = aligned_zeros(cache.sizes({}), DTYPES[cache.dtype])
    try:
        said = StepInputs(**given, of_blocks=tuple(own.values()))
        net = Network(config, weights, said, caches | states)
        logits = family.build(net)
    except ModelError as error:
        raise ModelError(f"{file.path}: {error}") from None
    graph = net.graph
    for apply in (sparse(net), *passes):
        graph, memory = apply(graph, memory)
    list_of, kept = (Kept((n, memory[n]) for n in names) for names in (caches, states))
    inputs |= {n: memory[n] for n in ("into", "packed", "page_lists") if n in memory}
    return Built(config, graph, memory, inputs, list_of, kept, logits, _pages_of(memory))


def build_mtp(
    file: GGUFFile, model_info: ModelInfo, cells: Cells, options: Options, model: Built
) -> list[Built]:
    """The graphs of the multi-token prediction (MTP) blocks. Each has memory of its own except the
    cache's cells; the `model` stores the hidden state for the first block, and each block for the
    next."""
    found, kept = list[Built](), model.memory
    for i in range(model_info.config.mtp_blocks):
        found.append(_build_block(file, model_info, cells, options, model, i, kept))
        kept = found[-1].memory
    return found


def _build_block(
    file: GGUFFile,
    model_info: ModelInfo,
    cells: Cells,
    options: Options,
    model: Built,
    number: int,
    kept: Memory,
) -> Built:
    """The graph of one MTP block, which reads the hidden state stored as `kept`."""
    config, family, limits = model_info.config, model_info.family, model.limits
    names = [mtp.HIDDEN, *(f"{mtp.HIDDEN}.{i}" for i in range(1, config.mtp_blocks))]
    one, given = mtp.alone(config), _inputs_of(cells)
    given = {name: value for name, value in given.items() if name not in ("sources", "targets")}
    goals = Value("next_cells", "input", "i32", ("outputs",))
    lasting = {name: model.memory[name] for name in ("lists", "cell_positions")}
    memory = dict(lasting)
    for value in (*given.values(), goals):
        memory.setdefault(value.name, np.zeros(value.sizes(limits), np.int32))
    inputs = dict(memory)
    known = family.expected_tensors(one) | family.optional_tensors(one) | mtp.joining(config)
    at = partial(mtp.stored, config=config, tensors=file.tensors, number=number)
    weights = _weights_of(file, family, one, memory, cells.capacity, known, at)
    caches = _caches_of(one, options.kv_format, cells.capacity)
    for name, cache in caches.items():
        memory[name] = aligned_zeros(cache.sizes({}), DTYPES[cache.dtype])
    hidden = Value(names[number], "cache", "u8", (cells.capacity, config.hidden), "F32")
    memory[hidden.name] = kept[hidden.name]
    said, last = StepInputs(**given, of_blocks=()), number + 1 == config.mtp_blocks
    net = Network(one, weights, said, caches)
    logits, graph = mtp.build(net, hidden, goals if last else None), net.graph
    if not last:
        graph, memory = keep_hidden(graph, memory, names[number + 1])
    return Built(one, graph, memory, inputs, Kept(memory), {}, logits)


def _inputs_of(cells: Cells) -> dict[str, Value]:
    """The inputs written before a step, by StepInputs' names."""
    dims: dict[str, tuple[int | str, ...]] = {
        "tokens": ("tokens",),
        "positions": ("tokens",),
        "cells": ("tokens",),
        "spans": ("tokens", 3),
        "rows": ("outputs",),
        **{name: array.shape for name, array in cells.method.persistent_inputs.items()},
    }
    if cells.window:
        dims["window_spans"] = dims["spans"]
    if cells.states:
        dims |= dict.fromkeys(("sources", "targets"), ("tokens",))
    return {name: Value(name, "input", "i32", own) for name, own in dims.items()}


def _weights_of(
    file: GGUFFile,
    family: Family,
    config: ModelConfig,
    arrays: dict[str, Array],
    context: int,
    known: Iterable[str],
    at: Callable[[str], str] = str,
) -> dict[str, Value]:
    """The model's weights and constants for a context of so many cells, by the names in its graph;
    their memory is entered into `arrays`, except for tensors whose rows are gathered. The file
    names each `known` tensor as `at` says."""
    weights: dict[str, Value] = {}
    for own in chain(known, parts_of(config), feed_forward.picked(config)):
        if (name := at(own)) not in file.tensors:
            continue
        info = file.tensors[name]
        row = name.endswith("exp_probs_b.bias")  # which may be one, as `check_dims` says
        if len(info.dims) == 1 or row or name.endswith("_norm.weight") or is_small(name):
            values = FORMATS[info.type_name].dequantise(file.tensor(name))
            values = values.reshape(-1) if row else values
            if name.endswith("layer_output_scale.weight"):  # one number that scales everything
                values = np.repeat(values, config.hidden)
            arrays[name] = to_op_layout(name, values)
            weights[own] = Value(name, "weight", "f32", arrays[name].shape)
        else:
            if not info.picked:
                arrays[name] = file.tensor(name)
            weights[own] = Value(name, "weight", "u8", info.dims, info.type_name)
    constants = family.constants(config, _divisors(file, config, arrays, context))
    for name, array in (constants | feed_forward.constants(config)).items():
        arrays[name] = array
        weights[name] = Value(name, "weight", _word(array), array.shape)
    return weights


def _divisors(
    file: GGUFFile, config: ModelConfig, arrays: Mapping[str, Array], context: int
) -> Array | None:
    """The divisors of rotary frequencies: the file's tensor rope_freqs, or the one of its two sets
    that is for this context, if it has them."""
    sets = {kind: arrays.get(f"rope_factors_{kind}.weight") for kind in ("short", "long")}
    missing = [kind for kind, found in sets.items() if found is None]
    kind = file.metadata.get(f"{config.architecture}.rope.scaling.type")
    if len(missing) == 1 or (missing and kind == "longrope"):
        raise ModelError(f"{file.path}: tensor rope_factors_{missing[0]}.weight is missing")
    return arrays.get("rope_freqs.weight", sets[config.rope_factor_set(context)])


def _states_of(config: ModelConfig, cells: Cells) -> dict[str, Value]:
    """Recurrent states by name."""
    count = cells.states.count if cells.states else 0
    return {n: Value(n, "cache", "f32", (count, *dims)) for n, dims in config.states.items()}


def _caches_of(config: ModelConfig, kv_format: str, context: int) -> dict[str, Value]:
    """Keys and values of each attention block by name; latent attention has one cache for both."""
    widths = {i: config.cell_width(i) for i in range(config.blocks)}
    names = {
        f"blk.{i}.{part}_cache": width
        for i, width in widths.items()
        if width
        for part in ("k" if config.latent else "kv")
    }
    return {n: Value(n, "cache", "u8", (context, w), kv_format) for n, w in names.items()}


def _pages_of(memory: Memory) -> Kept:
    """uint8 [pages, bytes] for each block's keys and values that passes keep beside its caches, by
    name."""
    kept = {name: array for name, array in memory.items() if name.endswith(BESIDE)}
    return {name: array.reshape(len(array), -1) for name, array in kept.items()}


def _word(array: Array) -> str:
    return {"float32": "f32", "float64": "f64", "int32": "i32"}[array.dtype.name]
