"""Sparse feed-forward networks in PowerInfer's files (arXiv 2312.12456): tensors, metadata, and
where skipping neurons is faster.

A neuron is a row of ffn_gate, of ffn_up and of ffn_down_t, the transposed ffn_down. Predictors, fc1
and fc2 of each block, predict which neurons a token activates. Such a file has the magic PWRI; one
without predictors, or with the usual magic, is recognized by ffn_down_t.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import replace

from engine.config import ModelConfig, ModelError, Sparsity
from engine.gguf.file import GGUFFile
from reference.formats import FORMATS
from reference.table import OPS

MAGIC = "PWRI"
THRESHOLD = "powerinfer.sparse_threshold"
THRESHOLD_VARIABLE = (
    "LLAMA_SPARSE_PRED_THRESHOLD"  # PowerInfer's variable, which overrides the file's
)
MODES = ("auto", "on", "off")
# Measured by bench.sparse_speed with fast memory: the overhead of masks and barriers, in bytes of
# weights read in that time, and the cost of gathered rows relative to packed ones, for floats and
# for blocks.
SKIP_OVERHEAD = 1_200_000
GATHER_COST = (1.8, 2.8)
# PowerInfer's activations for files whose usual one is not sparse.
SPARSE_ACTIVATIONS = {"swiglu": "reglu", "gelu": "relu", "gelu_erf": "relu"}


def with_sparsity(
    config: ModelConfig, file: GGUFFile, mode: str, threshold: float | None, union: bool
) -> tuple[ModelConfig, list[str]]:
    """Add the file's sparsity to the config; returns notes on blocks that cannot skip neurons.
    Mode "off" leaves predictors unused."""
    down = "blk.0.ffn_down_t.weight" in file.tensors
    if not down and file.magic != MAGIC:
        if threshold is not None or mode == "on":
            raise ModelError(f"{file.path}: not sparse: it has neither predictors nor ffn_down_t")
        return config, []
    config = replace(
        config,
        activation=SPARSE_ACTIVATIONS.get(config.activation, config.activation),
        transposed_down=True,
    )
    ranks = _ranks(config, file)
    if mode == "off":
        return config, []
    if not ranks and (mode == "on" or file.magic == MAGIC):
        raise ModelError(f"{file.path}: tensor blk.0.fc1.weight (a predictor) is missing")
    found = Sparsity(ranks, _threshold(file, threshold), union)
    dense = _dense_only_blocks(config, file)
    if dense and mode == "on":
        raise ModelError(f"{file.path}: {next(iter(dense.values()))}")
    config = replace(config, sparsity=found)
    return run_dense(config, set(dense)), list(dense.values())[:1]


def run_dense(config: ModelConfig, blocks: set[int]) -> ModelConfig:
    """The config with these blocks run dense."""
    rest = config.sparsity.without(blocks) if config.sparsity else None
    return replace(config, sparsity=rest if rest and rest.ranks else None)


def _dense_only_blocks(config: ModelConfig, file: GGUFFile) -> dict[int, str]:
    """Blocks with a predictor whose format has no sparse kernels, with the reason."""
    known = OPS["sparse_linear"].formats
    found: dict[int, str] = {}
    for i in range(config.blocks):
        for name in (f"blk.{i}.ffn_gate.weight", f"blk.{i}.ffn_up.weight"):
            info = file.tensors.get(name)
            predictor = f"blk.{i}.fc1.weight" in file.tensors
            if info and predictor and info.type_name not in known:
                found[i] = (
                    f"tensor {name} is in {info.type_name}, which has no sparse kernels; formats"
                    f" that have: {', '.join(known)}"
                )
    return found


def _ranks(config: ModelConfig, file: GGUFFile) -> dict[int, int]:
    """Predictor ranks by block, from the tensors' shapes; all blocks have predictors, or none."""
    ranks: dict[int, int] = {}
    for i in range(config.blocks):
        found = [name for n in (1, 2) if (name := f"blk.{i}.fc{n}.weight") in file.tensors]
        if len(found) == 2:
            dims = file.tensors[found[0]].dims
            if len(dims) != 2:
                raise ModelError(f"{file.path}: tensor {found[0]} is not a matrix: {list(dims)}")
            ranks[i] = dims[0]
        elif found or ranks:
            lacking = next(n for n in (1, 2) if f"blk.{i}.fc{n}.weight" not in found)
            raise ModelError(f"{file.path}: tensor blk.{i}.fc{lacking}.weight is missing")
        elif i == 0 and any(name.endswith(".fc1.weight") for name in file.tensors):
            raise ModelError(f"{file.path}: tensor blk.0.fc1.weight is missing")
    return ranks


def _threshold(file: GGUFFile, wanted: float | None) -> float:
    """The threshold requested, or from the environment, or from the file."""
    named, value = "the sparse threshold", wanted
    if value is None and THRESHOLD_VARIABLE in os.environ:
        named, text = THRESHOLD_VARIABLE, os.environ[THRESHOLD_VARIABLE]
        try:
            value = float(text)
        except ValueError:
            raise ModelError(f"{THRESHOLD_VARIABLE} is {text!r}, not a number") from None
    if value is None:
        named, value = THRESHOLD, file.metadata.get(THRESHOLD, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ModelError(f"{file.path}: {named} is {value!r}, not a number")
    return float(value)


def settings(config: ModelConfig, mode: str) -> str:
    """A sparse model's settings, e.g. "sparse=auto,blocks=2/6,threshold=1": the blocks that skip
    neurons, of all. Empty for other models."""
    if not config.transposed_down:
        return ""
    found = config.sparsity
    words = [f"sparse={mode}", f"blocks={len(found.ranks) if found else 0}/{config.blocks}"]
    if found:
        words += [f"threshold={found.threshold:g}", *(["union"] if found.union else [])]
    return ",".join(words)


def dense_where_faster(
    config: ModelConfig, file: GGUFFile, shares: Mapping[int, float]
) -> tuple[ModelConfig, list[str]]:
    """Make blocks dense that are slower with sparsity, given the `shares` of neurons that their
    predictors activate; returns the config and a note."""
    dense = {i for i, share in shares.items() if not is_sparse_faster(file, i, share)}
    if not dense:
        return config, []
    least = min(shares[i] for i in dense)
    named = f"their predictors activate {least:.0%} of the neurons or more"
    reason = named if least else "they are small"  # however few are active
    note = f"{len(dense)} of {config.blocks} blocks run dense, which is faster: {reason}"
    return run_dense(config, dense), [note]


def is_sparse_faster(file: GGUFFile, i: int, active: float) -> bool:
    """Whether block i is faster if it computes only the `active` share of its neurons."""
    block = f"blk.{i}."
    found = {
        n.removeprefix(block): t.n_bytes for n, t in file.tensors.items() if n.startswith(block)
    }
    network = sum(size for name, size in found.items() if name.startswith("ffn_"))
    predictor = sum(size for name, size in found.items() if name.startswith("fc"))
    in_blocks = FORMATS[file.tensors[f"{block}ffn_up.weight"].type_name].block > 1
    return SKIP_OVERHEAD + predictor + GATHER_COST[in_blocks] * active * network < network
