"""What has to hold before a model is made, steps, or continues a prompt: of the file's tensors, of
the memory that is free, of arguments; and of what a step gives."""

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
from engine.models import further
from engine.models.family import Family
from engine.options import Options
from engine.sampling.params import SamplingParams
from reference.formats import FORMATS
from reference.formats.kivi import GROUP, PAGE_BYTES
from reference.op import Array

# Frequencies that old checkpoints store and that are computed here; predictors, without which a
# block runs dense.
HARMLESS = re.compile(r"blk\.\d+\.(attn_rot_embd|fc1|fc2)\.weight")


class PromptError(EngineError):
    """A prompt that cannot be continued."""


class NumericalError(EngineError, ArithmeticError):
    """The model's output is not a number."""


def check_tensors(file: GGUFFile, family: Family, config: ModelConfig) -> None:
    """Every tensor that the family wants is in the file, in a shape and a format that run, and none
    that its graph would leave out."""
    tensors = file.tensors
    blocks = config.blocks + config.further
    if blocks > len(tensors):  # before anything is made for each block
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
        if not name.endswith(".exp_probs_b.bias")  # of what is chosen by, not of a matrix
    ]
    if unused:
        more = f", and {len(unused) - 1} more" if unused[1:] else ""
        raise ModelError(
            f"{file.path}: it has tensor {shown(unused[0])}{more}, which {config.architecture} of"
            f" {config.blocks} blocks does not use: its answers would be wrong"
        )
    check_dims(file, known)


def check_further(file: GGUFFile, config: ModelConfig) -> None:
    """The same of the blocks that foretell tokens: that there is one, and what they need."""
    if not config.further:
        raise ModelError(
            f"{file.path}: it has no block that foretells further tokens, so none can draft them"
        )
    wanted = further.expected_tensors(config)
    if missing := [name for name in wanted if name not in file.tensors]:
        raise ModelError(f"{file.path}: tensor {missing[0]} is missing, without which none drafts")
    check_dims(file, wanted | further.optional_tensors(config))


def check_dims(file: GGUFFile, known: Mapping[str, tuple[int, ...]]) -> None:
    """Those of these tensors that are in the file have these dimensions and a format that runs."""
    tensors = file.tensors
    for name, dims in known.items():
        if name in tensors:
            info = tensors[name]
            if info.dims != dims and (1, *info.dims) != dims:  # a matrix of one row may be a vector
                got, expected = list(info.dims), list(dims)
                raise ModelError(f"{file.path}: tensor {name} is {got}, not {expected}")
            if info.type_name not in FORMATS:
                raise ModelError(
                    f"{file.path}: tensor {name} is in {info.type_name}; formats that run:"
                    f" {', '.join(FORMATS)}"
                )


def _unread(config: ModelConfig) -> set[str]:
    """Keys and values of blocks that read those of another, which files may have all the same."""
    roles = ("attn_k", "attn_v", "attn_k_norm")
    blocks = (i for i in range(config.blocks) if config.kept(i) != i)
    return {f"blk.{i}.{role}.weight" for i in blocks for role in roles}


def further_tensors(tensors: Iterable[str], config: ModelConfig) -> set[str]:
    """Those of blocks that foretell further tokens."""
    blocks = range(config.blocks, config.blocks + config.further)
    found = ((name, re.match(r"blk\.(\d+)\.", name)) for name in tensors)
    return {name for name, block in found if block and int(block[1]) in blocks}


def check_memory(config: ModelConfig, options: Options, context: int) -> None:
    """A cache of `context` cells is whole blocks of its format, and fits what is free."""
    layout = FORMATS[options.cell_format]
    blocks = range(options.cpu_blocks(config.blocks))
    widths = [config.cell(i) for i in range(config.blocks)]
    for width in widths:
        if width % layout.block:
            raise ModelError(
                f"kv_format {layout.name} has blocks of {layout.block}: the {width} elements that"
                " a cell holds of this model are no whole number of them"
            )
    rows = sum(layout.row_bytes(widths[i]) for i in blocks)
    each = 1 if config.latent else 2
    held, tokens = context, min(options.batch, context)
    if options.packs:
        held = rows_for(context, options.sequences, tokens, options.kv_residual)
        page = PAGE_BYTES * sum(widths[i] for i in blocks)
        rows += page * pages_for(context, options.sequences, GROUP) // held
    wanted = each * held * rows + 4 * options.sequences * context
    slots = slots_for(options.sequences, options.states)
    if options.foretells:
        wanted += context * (4 * config.hidden + each * max(map(layout.row_bytes, widths)))
    kept = (dims for i in blocks for dims in config.states_of(i).values())
    wanted += 4 * slots * sum(map(math.prod, kept))
    free = psutil.virtual_memory().available
    if wanted > free:
        raise ModelError(
            f"a context of {context} needs {wanted / 1e9:.1f} GB of cache,"
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
    """The arguments of `Model.step` fit one another, the vocabulary and the limits."""
    if bad := [t for t in tokens if not 0 <= t < config.vocab]:
        raise ModelError(f"token {bad[0]} is outside the vocabulary of {config.vocab}")
    learned = config.positions
    if learned and (beyond := [p for p in positions if p >= learned]):
        raise ModelError(
            f"position {beyond[0]} is none of the {learned} that the model has learned"
        )
    count = len(tokens)
    for name, size in (("tokens", count), ("outputs", len(wanted))):
        if size > limits[name]:
            raise ModelError(f"a step takes at most {limits[name]} {name}, got {size}")
    if not count == len(positions) == len(sequences):
        raise ModelError(
            f"a step's tokens, positions and sequences are as many: {count}, {len(positions)}"
            f" and {len(sequences)}"
        )
    if bad := [row for row in wanted if not 0 <= row < count]:
        raise ModelError(f"logits of token {bad[0]} are wanted, the step has {count} tokens")


def check_finite(
    rows: Array, positions: Sequence[int], wanted: Sequence[int], what: str = "logits"
) -> Array:
    """The rows that a step gives for the tokens that are `wanted` are numbers."""
    if not np.isfinite(rows.sum()) and not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0]
        which = f"token {column} " if what == "logits" else ""
        raise not_finite(positions[wanted[row]], which, what)
    return rows


def not_finite(position: int, which: str = "", what: str = "logits") -> NumericalError:
    """What to raise where those at `position` are no numbers."""
    return NumericalError(
        f"the model's {what} are not finite ({which}after position {position}): are there NaN"
        " or infinity in its weights?"
    )


def check_prompt(tokens: Sequence[int], vocab: int, capacity: int) -> None:
    """The context can hold these tokens."""
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
    """A context of so many cells can be continued so; `most` completions at once."""
    if params.n > most:
        raise PromptError(f"n is {params.n}, this engine was loaded for at most {most}")
    if (context_shift or resume) and params.n > 1:
        wanted = "context_shift" if context_shift else "resume"
        raise PromptError(f"{wanted} wants a single completion (n = 1)")
    if not 0 <= keep < capacity:
        raise PromptError(f"keep must be 0 to {capacity - 1}, got {keep}")
