"""What a model's graph begins with: the file's weights, the inputs of a step, the caches."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from engine.cache.cells import Cells
from engine.config import ModelConfig, ModelError
from engine.gguf.file import GGUFFile
from engine.graph import Value
from engine.models import feed_forward
from engine.models.family import Family
from engine.models.layers import StepInputs
from engine.recurrent import as_ops_take_it, is_small
from reference.formats import FORMATS

Array = np.ndarray[Any, np.dtype[Any]]
ROUTES = ("sources", "targets")  # of recurrent states


def inputs_of(limits: Mapping[str, int], cells: Cells) -> dict[str, Array]:
    """The arrays that are written to before a step."""
    tokens, outputs = limits["tokens"], limits["outputs"]
    windows = {"window_spans": np.zeros((tokens, 3), np.int32)} if cells.window else {}
    return {
        "tokens": np.zeros(tokens, np.int32),
        "positions": np.zeros(tokens, np.int32),
        "cells": np.zeros(tokens, np.int32),
        "spans": np.zeros((tokens, 3), np.int32),
        "rows": np.zeros(outputs, np.int32),
        "lists": cells.lists,
        "cell_positions": cells.positions,
        **windows,
        **({name: np.zeros(tokens, np.int32) for name in ROUTES} if cells.states else {}),
    }


def step_inputs(cells: Cells) -> StepInputs:
    """The same as a graph has them."""
    dims = {
        "tokens": ("tokens",),
        "positions": ("tokens",),
        "cells": ("tokens",),
        "spans": ("tokens", 3),
        "lists": cells.lists.shape,
        "cell_positions": cells.positions.shape,
        "rows": ("outputs",),
    }
    if cells.window:
        dims["window_spans"] = dims["spans"]
    if cells.states:
        dims |= dict.fromkeys(ROUTES, ("tokens",))
    return StepInputs(**{name: Value(name, "input", "i32", own) for name, own in dims.items()})


def weights_of(
    file: GGUFFile, family: Family, config: ModelConfig, arrays: dict[str, Array], context: int
) -> dict[str, Value]:
    """The weights and constants of a model for a context of so many cells; their memory is put into
    `arrays`, except of rows that are picked from tensors."""
    weights: dict[str, Value] = {}
    known = [family.expected_tensors(config), family.optional_tensors(config)]
    for name in chain(*known, family.parts(config), feed_forward.picked(config)):
        if name not in file.tensors:
            continue
        info = file.tensors[name]
        if len(info.dims) == 1 or name.endswith("_norm.weight") or is_small(name):
            values = FORMATS[info.type_name].dequantise(file.tensor(name))
            arrays[name] = as_ops_take_it(name, values)
            weights[name] = Value(name, "weight", "f32", arrays[name].shape)
        else:
            if not info.picked:
                arrays[name] = file.tensor(name)
            weights[name] = Value(name, "weight", "u8", info.dims, info.type_name)
    constants = family.constants(config, _divisors(file, config, arrays, context))
    for name, array in (constants | feed_forward.constants(config)).items():
        arrays[name] = array
        weights[name] = Value(name, "weight", _word(array), array.shape)
    return weights


def _divisors(
    file: GGUFFile, config: ModelConfig, arrays: Mapping[str, Array], context: int
) -> Array | None:
    """What rotary frequencies are divided by: the file's tensor rope_freqs, or that of its two sets
    which is for this context, if it has them."""
    sets = {kind: arrays.get(f"rope_factors_{kind}.weight") for kind in ("short", "long")}
    missing = [kind for kind, found in sets.items() if found is None]
    if len(missing) == 1:
        raise ModelError(f"{file.path}: tensor rope_factors_{missing[0]}.weight is missing")
    return arrays.get("rope_freqs.weight", sets[config.rope_set(context)])


def states_of(config: ModelConfig, cells: Cells) -> dict[str, Value]:
    """Recurrent states, by name."""
    count = cells.states.count if cells.states else 0
    return {n: Value(n, "cache", "f32", (count, *dims)) for n, dims in config.states.items()}


def caches_of(config: ModelConfig, kv_format: str, context: int) -> dict[str, Value]:
    """Keys and values of each block that attends, by name; of latent attention they are one."""
    dims = context, config.kv_heads * config.head_dim
    attending = filter(config.attends, range(config.blocks))
    names = [
        f"blk.{i}.{part}_cache" for i in attending for part in ("k" if config.latent else "kv")
    ]
    return {name: Value(name, "cache", "u8", dims, kv_format) for name in names}


def _word(array: Array) -> str:
    return {"float32": "f32", "float64": "f64", "int32": "i32"}[array.dtype.name]
