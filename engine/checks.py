"""Validation of a GGUF file's tensors, of free memory, of step and generation arguments, and of a
step's results."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import psutil

from engine.cache.paged import pages_for
from engine.cache.states import slots_for
from engine.cache.two_bits import rows_for
from engine.config import ModelConfig, ModelError
from engine.errors import EngineError
from engine.gguf.cursor import shown
from engine.gguf.file import GGUFFile
from engine.models import mtp
from engine.models.family import Family
from engine.options import Options
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Argmax
from reference.formats import FORMATS
from reference.formats.kivi import GROUP, PAGE_BYTES
from reference.op import Array

# Rotary frequencies in old checkpoints (recomputed here), and predictors (a block without them runs
# dense).
HARMLESS = re.compile(r"blk\.\d+\.(attn_rot_embd|fc1|fc2)\.weight")


class PromptError(EngineError):
    """A prompt that cannot be continued."""


class NumericalError(EngineError, ArithmeticError):
    """NaN or infinity in the model's output."""


def check_tensors(file: GGUFFile, family: Family, config: ModelConfig) -> None:
    """Check that the file has every tensor of the family, in a supported shape and format, and no
    tensor that the graph would ignore."""
    tensors = file.tensors
    blocks = config.blocks + config.mtp_blocks
    if blocks > len(tensors):  # before allocating per block
        raise ModelError(
            f"{file.path}: {config.architecture}.block_count is {blocks},"
            f" but there are {len(tensors)} tensors"
        )
    wanted = family.expected_tensors(config)
    if missing := [name for name in wanted if name not in tensors]:
        raise ModelError(f"{file.path}: tensor {missing[0]} is missing")
    known = wanted | family.optional_tensors(config)
    left = known.keys() | further_tensors(tensors, config) | _unread(config)
    unused = [name for name in tensors if name not in left and not HARMLESS.fullmatch(name)]
    unused += [
        name
        for name in family.optional_tensors(config)
        if name.endswith(".bias") and name in tensors
        if name.removesuffix("bias") + "weight" not in tensors
        if not name.endswith(".exp_probs_b.bias")  # the router's selection bias has no matrix
    ]
    if unused:
        more = f", and {len(unused) - 1} more" if unused[1:] else ""
        raise ModelError(
            f"{file.path}: it has tensor {shown(unused[0])}{more}, which {config.architecture} of"
            f" {config.blocks} blocks does not use: its answers would be wrong"
        )
    check_dims(file, known)


def check_further(file: GGUFFile, config: ModelConfig) -> None:
    """Check the tensors of the multi-token-prediction (MTP) blocks."""
    if not config.mtp_blocks:
        raise ModelError(f"{file.path}: it has no multi-token-prediction block to draft with")
    wanted = mtp.expected_tensors(config)
    if missing := [name for name in wanted if name not in file.tensors]:
        raise ModelError(f"{file.path}: tensor {missing[0]} is missing: drafting needs it")
    check_dims(file, wanted | mtp.optional_tensors(config))


def check_dims(file: GGUFFile, known: Mapping[str, tuple[int, ...]]) -> None:
    """Check the dimensions and formats of those `known` tensors that the file has."""
    tensors = file.tensors
    for name, dims in known.items():
        if name in tensors:
            info = tensors[name]
            # a matrix of one row may be a vector
            may_be = {dims, dims[1:] if dims[0] == 1 else dims}
            if name.endswith("exp_probs_b.bias"):  # llama.cpp's converter makes ERNIE's a row
                may_be.add((1, *dims))
            if info.dims not in may_be:
                got, expected = list(info.dims), list(dims)
                raise ModelError(f"{file.path}: tensor {name} is {got}, not {expected}")
            if info.type_name not in FORMATS:
                raise ModelError(
                    f"{file.path}: tensor {name} is in {info.type_name}; formats that run:"
                    f" {', '.join(FORMATS)}"
                )


def _unread(config: ModelConfig) -> set[str]:
    """K and V tensors that files may have for blocks that share another block's KV cache."""
    roles = ("attn_k", "attn_v", "attn_k_norm")
    blocks = (i for i in range(config.blocks) if config.cache_block(i) != i)
    return {f"blk.{i}.{role}.weight" for i in blocks for role in roles}


def further_tensors(tensors: Iterable[str], config: ModelConfig) -> set[str]:
    """Names of the tensors of multi-token-prediction blocks."""
    blocks = range(config.blocks, config.blocks + config.mtp_blocks)
    found = ((name, re.match(r"blk\.(\d+)\.", name)) for name in tensors)
    return {name for name, block in found if block and int(block[1]) in blocks}


def check_memory(config: ModelConfig, options: Options, context: int) -> None:
    """Check that KV cache rows are whole blocks of the format and that the cache fits."""
    layout = FORMATS[options.cell_format]
    blocks = range(options.cpu_blocks(config.blocks))
    widths = [config.cell_width(i) for i in range(config.blocks)]
    for width in widths:
        if width % layout.block:
            raise ModelError(
                f"kv_format {layout.name} has blocks of {layout.block}: a cell of this model has"
                f" {width} elements, not a multiple of it"
            )
    rows = sum(layout.row_bytes(widths[i]) for i in blocks)
    each = 1 if config.latent else 2
    held, tokens = context, min(options.batch, context)
    if options.packs_kv:
        held = rows_for(context, options.sequences, tokens, options.kv_residual)
        page = PAGE_BYTES * sum(widths[i] for i in blocks)
        rows += page * pages_for(context, options.sequences, GROUP) // held
    wanted = each * held * rows + 4 * options.sequences * context
    slots = slots_for(options.sequences, options.states)
    if options.mtp:
        wanted += context * (4 * config.hidden + each * max(map(layout.row_bytes, widths)))
    kept = (dims for i in blocks for dims in config.states_of(i).values())
    wanted += 4 * slots * sum(map(math.prod, kept))
    free = psutil.virtual_memory().available
    if wanted > free:
        raise ModelError(
            f"a context of {context} needs {wanted / 1e9:.1f} GB of KV cache,"
            f" {free / 1e9:.1f} GB are free"
        )


def check_step(
    config: ModelConfig,
    limits: Mapping[str, int],
    tokens: Sequence[int],
    positions: Sequence[int],
    sequences: Sequence[Sequence[int]],
    wanted: Sequence[int],
) -> None:
    """Check the arguments of `Model.step` against each other, the vocabulary and the limits."""
    if bad := [t for t in tokens if not 0 <= t < config.vocab]:
        raise ModelError(f"token {bad[0]} is outside the vocabulary of {config.vocab}")
    learned = config.positions
    if learned and (beyond := [p for p in positions if p >= learned]):
        raise ModelError(f"position {beyond[0]} is beyond the model's {learned} learned positions")
    count = len(tokens)
    for name, size in (("tokens", count), ("outputs", len(wanted))):
        if size > limits[name]:
            raise ModelError(f"a step takes at most {limits[name]} {name}, got {size}")
    if not count == len(positions) == len(sequences):
        raise ModelError(
            f"a step has {count} tokens, {len(positions)} positions and {len(sequences)} sequences:"
            " the counts must be equal"
        )
    if bad := [row for row in wanted if not 0 <= row < count]:
        raise ModelError(f"logits of token {bad[0]} are requested, the step has {count} tokens")


def check_finite(
    rows: Array, positions: Sequence[int], wanted: Sequence[int], what: str = "logits"
) -> Array:
    """Returns `rows`; raises `NumericalError` if they have NaN or infinity."""
    if not np.isfinite(rows.sum()) and not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        which = f"token {column} " if what == "logits" else ""
        raise _not_finite(positions[wanted[row]], which, what)
    return rows


def check_argmax(rows: Sequence[Argmax], positions: Sequence[int]) -> Sequence[Argmax]:
    """Returns `rows`; raises `NumericalError` if logits after one of the positions were not
    finite."""
    for row, position in zip(rows, positions, strict=True):
        if not math.isfinite(row.logprob):
            raise _not_finite(position)
    return rows


def _not_finite(position: int, which: str = "", what: str = "logits") -> NumericalError:
    return NumericalError(
        f"the model's {what} are not finite ({which}after position {position}): are there NaN"
        " or infinity in its weights?"
    )


def check_prompt(tokens: Sequence[int], vocab: int, capacity: int) -> None:
    """Check a prompt against the vocabulary and the context."""
    if not tokens:
        raise PromptError("the prompt is empty")
    if len(tokens) > capacity:
        raise PromptError(
            f"the prompt has {len(tokens)} tokens, the context holds {capacity}:"
            " shorten it or load with a larger context"
        )
    if bad := [t for t in tokens if not 0 <= t < vocab]:
        raise PromptError(f"token {bad[0]} is outside the vocabulary of {vocab}")


def check_generation(
    params: SamplingParams, most: int, capacity: int, context_shift: bool, keep: int, resume: bool
) -> None:
    """Check that `params.n` is at most `most`, and that the other arguments are compatible."""
    if params.n > most:
        raise PromptError(f"n is {params.n}, this engine was loaded for at most {most}")
    if (context_shift or resume) and params.n > 1:
        wanted = "context_shift" if context_shift else "resume"
        raise PromptError(f"{wanted} needs a single completion (n = 1)")
    if not 0 <= keep < capacity:
        raise PromptError(f"keep must be 0 to {capacity - 1}, got {keep}")
