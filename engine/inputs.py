"""What a model's graph begins with: the file's weights, the inputs of a step, the caches."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from engine.cells import Cells
from engine.config import ModelConfig
from engine.gguf_file import GGUFFile
from engine.graph import Value
from engine.models import feed_forward
from engine.models.family import Family
from engine.models.layers import StepInputs
from reference.formats import FORMATS

Array = np.ndarray[Any, np.dtype[Any]]


def inputs_of(limits: Mapping[str, int], cells: Cells) -> dict[str, Array]:
    """The arrays that are written to before a step."""
    tokens, outputs = limits["tokens"], limits["outputs"]
    return {
        "tokens": np.zeros(tokens, np.int32),
        "positions": np.zeros(tokens, np.int32),
        "cells": np.zeros(tokens, np.int32),
        "spans": np.zeros((tokens, 3), np.int32),
        "rows": np.zeros(outputs, np.int32),
        "lists": cells.lists,
        "cell_positions": cells.positions,
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
    return StepInputs(**{name: Value(name, "input", "i32", own) for name, own in dims.items()})


def weights_of(
    file: GGUFFile, family: Family, config: ModelConfig, arrays: dict[str, Array]
) -> dict[str, Value]:
    """The weights and constants of a model; their memory is put into `arrays`, except of rows that
    are picked from tensors."""
    weights: dict[str, Value] = {}
    known = [family.expected_tensors(config), family.optional_tensors(config)]
    for name in chain(*known, family.parts(config), feed_forward.picked(config)):
        if name not in file.tensors:
            continue
        info = file.tensors[name]
        if len(info.dims) == 1:
            arrays[name] = FORMATS[info.type_name].dequantise(file.tensor(name))
            weights[name] = Value(name, "weight", "f32", info.dims)
        else:
            if not info.picked:
                arrays[name] = file.tensor(name)
            weights[name] = Value(name, "weight", "u8", info.dims, info.type_name)
    constants = family.constants(config, arrays.get("rope_freqs.weight"))
    for name, array in (constants | feed_forward.constants(config)).items():
        arrays[name] = array
        weights[name] = Value(name, "weight", _word(array), array.shape)
    return weights


def caches_of(config: ModelConfig, kv_format: str, context: int) -> dict[str, Value]:
    """Keys and values of each block, by name."""
    dims = context, config.kv_heads * config.head_dim
    names = [f"blk.{i}.{part}_cache" for i in range(config.blocks) for part in "kv"]
    return {name: Value(name, "cache", "u8", dims, kv_format) for name in names}


def _word(array: Array) -> str:
    return {"float32": "f32", "float64": "f64", "int32": "i32"}[array.dtype.name]
