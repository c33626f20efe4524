"""Quantises a GGUF file: chooses each tensor's format and writes the new file, piece by piece."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gguf import GGML_QUANT_VERSION

from engine.errors import EngineError
from engine.file_errors import shown_path
from engine.gguf.cursor import shown
from engine.gguf.edit import keys_of, write_from
from engine.gguf.file import Bytes, GGUFFile, TensorInfo
from engine.gguf.tensor_reader import TensorReader
from engine.gguf.writer import NewTensor, u32
from engine.offload.bundle import UNDO_FIRST, is_bundled
from engine.progress import ProgressCallback
from engine.quantise.importance import Importance
from engine.quantise.mixes import ALIASES, MIXES, Mix, Place, fitting
from engine.quantise.values import Floats, Formats, decoding, encoding, misfit
from engine.recurrent import is_small
from kernels.certify import Certified
from kernels.cpu.runtime.cores import physical_cores
from kernels.cpu.runtime.team import Team
from reference.formats import FORMATS

PIECE = 2**22  # elements at a time
FLOATS = ("F32", "F16", "BF16")
VALUES = (
    ".attn_v.weight",
    ".attn_qkv.weight",
    ".attn_kv_b.weight",
)  # whole tensors, or rows of them


class QuantiseError(EngineError):
    """A model that cannot be quantised so, in one plain line."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a model becomes.

    - `type`: a mix by llama.cpp's name, such as Q4_K_M; `pure`: all matrices in its format.
    - `overrides`: pairs of a regular expression, which may match anywhere in a tensor's name, and
      a format; the first that matches counts. `output` and `embedding`: formats of those two.
    - `importance`: how much each column matters.
    - `requantise`: take quantised tensors too, whose errors add up.
    """

    type: str
    pure: bool = False
    overrides: Sequence[tuple[str, str]] = ()
    output: str | None = None
    embedding: str | None = None
    importance: Importance | None = None
    requantise: bool = False

    @property
    def mix(self) -> Mix:
        """The mix. Raises `QuantiseError` if there is none of that name."""
        name = self.type.upper()
        mix = MIXES.get(ALIASES.get(name, name))
        if mix is None:
            raise QuantiseError(f"there is no type {self.type!r}: want {', '.join(MIXES)}")
        return mix

    @property
    def rules(self) -> list[tuple[re.Pattern[str], str]]:
        """The overrides. Raises `QuantiseError` for an unknown format or a bad pattern."""
        formats = (self.output, self.embedding, *(name for _, name in self.overrides))
        for name in filter(None, formats):
            _check_format(name)
        try:
            return [(re.compile(pattern), name) for pattern, name in self.overrides]
        except re.error as error:
            raise QuantiseError(f"{error.pattern!r} is no regular expression: {error}") from None


@dataclass(frozen=True, slots=True)
class Choice:
    """A tensor and its new format, if it changes; `note` tells why it is not the requested one, and
    `importance` float32 [experts or 1, hidden] is its columns' importance, where that matters."""

    tensor: TensorInfo
    format: str
    note: str = ""
    importance: Floats | None = None

    @property
    def copied(self) -> bool:
        return self.format == self.tensor.type_name

    @property
    def weights(self) -> int:
        """The number of elements."""
        return math.prod(self.tensor.dims)

    @property
    def becomes(self) -> NewTensor:
        return NewTensor(self.tensor.name, self.format, self.tensor.dims)


def choices(file: GGUFFile, recipe: Recipe) -> list[Choice]:
    """The choice for every tensor, in the file's order. Raises `QuantiseError`."""
    mix, overrides = recipe.mix, recipe.rules
    if is_bundled(file):
        raise QuantiseError(f"{shown_path(file.path)}: {UNDO_FIRST}")
    matrices = [name for name, tensor in file.tensors.items() if _is_matrix(tensor)]
    for pattern, _ in overrides:
        if not any(map(pattern.search, matrices)):
            raise QuantiseError(f"no matrix's name matches {pattern.pattern!r}")
    if recipe.importance and not recipe.importance.columns.keys() & set(matrices):
        raise QuantiseError(f"{recipe.importance.source}: there is no matrix of this model in it")
    found = [_choice(file, tensor, recipe, mix, overrides) for tensor in file.tensors.values()]
    for choice in found:
        if not choice.copied:
            _check_source(file, choice.tensor, recipe)
    return found


def _check_source(file: GGUFFile, tensor: TensorInfo, recipe: Recipe) -> None:
    kind, where = tensor.type_name, f"{shown_path(file.path)}: tensor {shown(tensor.name)}"
    if kind not in FORMATS:
        raise QuantiseError(f"{where} is {kind}, which cannot be read as numbers")
    if kind not in FLOATS and not recipe.requantise:
        raise QuantiseError(
            f"{where} is {kind} already: --allow-requantize would quantise it again"
        )


def _check_format(name: str) -> None:
    written = [kind for kind, form in FORMATS.items() if form.encode]
    if name not in written:
        what = "cannot be quantised to" if name in FORMATS else "is no format"
        raise QuantiseError(f"{name} {what}: want {', '.join(written)}")


def _choice(
    file: GGUFFile,
    tensor: TensorInfo,
    recipe: Recipe,
    mix: Mix,
    overrides: Sequence[tuple[re.Pattern[str], str]],
) -> Choice:
    if not _is_matrix(tensor):
        return Choice(tensor, tensor.type_name)
    wanted = next((name for pattern, name in overrides if pattern.search(tensor.name)), None)
    role = _role(file, tensor.name)
    if wanted is None:
        named = _named(recipe, tensor.name, role)
        place = _place(file, tensor, recipe)
        wanted = named or (mix.base if recipe.pure else mix.choose(role, place))
    hidden = tensor.dims[-1]
    chosen = fitting(wanted, hidden)
    note = f"{chosen}, since rows of {hidden} take no {wanted}" if chosen != wanted else ""
    if recipe.importance is None or FORMATS[chosen].encode_weighted is None:
        return Choice(tensor, chosen, note)
    importance = recipe.importance.of(tensor.name, hidden, _experts(tensor))
    if importance is None:
        note = ", ".join(filter(None, (note, "not in the importance matrix")))
    return Choice(tensor, chosen, note, importance)


def _is_matrix(tensor: TensorInfo) -> bool:
    """Whether a tensor is quantised at all: norms, biases, routers, learned positions, single rows
    and a recurrent block's convolution are copied."""
    stay = (
        "_norm.weight",
        "ffn_gate_inp.weight",
        "position_embd.weight",
        "per_layer_model_proj.weight",
    )
    kept = tensor.name.endswith(stay)
    small = kept or is_small(tensor.name)
    return tensor.name.endswith("weight") and math.prod(tensor.dims[:-1]) > 1 and not small


def _experts(tensor: TensorInfo) -> int:
    """How many experts' matrices a tensor holds; 1 if it is no mixture's."""
    return tensor.dims[0] if len(tensor.dims) == 3 else 1


def _role(file: GGUFFile, name: str) -> str:
    """`output`, also of tied embeddings, `token_embd`, or the ROLE in blk.0.ROLE.weight, where
    experts have the role of the dense network's matrix, and fused tensors that of values."""
    if name.endswith(VALUES):
        return "attn_v"
    role = name.removesuffix(".weight").rpartition(".")[2]
    role = re.sub(r"^(ffn_(gate|up|down)).*", r"\1", role.removeprefix("per_layer_"))
    return "output" if role == "token_embd" and "output.weight" not in file.tensors else role


def _named(recipe: Recipe, name: str, role: str) -> str | None:
    """The recipe's format for the output or the embedding; tied embeddings take either."""
    if name.removeprefix("per_layer_") == "token_embd.weight" and recipe.embedding:
        return recipe.embedding
    return recipe.output if role == "output" else None


def _place(file: GGUFFile, tensor: TensorInfo, recipe: Recipe) -> Place:
    """The position as llama.cpp counts it: values by the blocks with attention, and heads by the
    first block."""
    name = tensor.name
    block, kin = re.match(r"blk\.(\d+)\.", name), [name]
    if name.endswith(VALUES):
        kin = [other for other in file.tensors if other.endswith(VALUES)]
        kin.sort(key=lambda other: int(other.split(".")[1]))
    prefix = file.metadata.get("general.architecture", "")

    def count(key: str, default: int) -> int:
        value = file.metadata.get(f"{prefix}.{key}", default)
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, int) and value > 0 else default

    heads = count("attention.head_count", 1)
    return Place(
        layer=kin.index(name) if len(kin) > 1 else int(block[1]) if block else 0,
        layers=len(kin) if len(kin) > 1 else count("block_count", 1),
        grouped=heads // count("attention.head_count_kv", heads),
        weighed=recipe.importance is not None,
        experts=count("expert_count", 0),
        of_experts=_experts(tensor) > 1,
        architecture=prefix,
    )


def quantise(
    file: GGUFFile,
    out: Path,
    recipe: Recipe,
    *,
    threads: int = 0,
    progress: ProgressCallback | None = None,
    certified: Certified | None = None,
) -> list[Choice]:
    """Write `out`; returns the choice for each tensor.

    `progress` receives bytes written and in total. Raises `QuantiseError`, `OutputError` or
    `GGUFError` and then leaves nothing of `out`.
    """
    plan = choices(file, recipe)
    keys = keys_of(file) | {
        "general.file_type": u32(recipe.mix.file_type),
        "general.quantization_version": u32(GGML_QUANT_VERSION),
    }
    if recipe.importance:
        keys |= recipe.importance.provenance()
    changed = [choice for choice in plan if not choice.copied]
    needs = [decoding(choice.tensor.type_name, choice.tensor.dims[-1]) for choice in changed]
    needs += [
        encoding(choice.format, choice.tensor.dims[-1], choice.importance is not None)
        for choice in changed
    ]

    def pieces(reader: TensorReader) -> Iterator[Bytes]:
        for choice in plan:
            tensor, first = choice.tensor, 0
            for rows in reader.rows(tensor, PIECE * tensor.n_bytes // max(1, choice.weights)):
                if choice.copied:
                    yield rows
                    continue
                x = formats.decoded(rows, tensor.type_name, tensor.dims[-1])
                if fault := misfit(x, choice.format, first):
                    raise QuantiseError(f"tensor {shown(tensor.name)}: {fault}")
                yield from _encoded(formats, choice, x, first)
                first += len(rows)

    with Team(threads or physical_cores()) as team:
        formats = Formats(team, needs, certified)
        write_from(file, out, keys, [choice.becomes for choice in plan], pieces, progress)
    return plan


def _encoded(formats: Formats, choice: Choice, x: Floats, first: int) -> Iterator[Bytes]:
    """Rows from `first` on, each expert's with its own importance."""
    if choice.importance is None:
        yield formats.encoded(x, choice.format)
        return
    each = choice.weights // choice.importance.size
    for expert in range(first // each, -(-(first + len(x)) // each)):
        own = x[max(0, expert * each - first) : (expert + 1) * each - first]
        yield formats.encoded(own, choice.format, choice.importance[expert])
