"""Quantising a GGUF file: what each tensor becomes, and the new file, piece by piece."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_VERSION

from engine.faults import shown_path
from engine.gguf_cursor import shown
from engine.gguf_edit import keys_of
from engine.gguf_file import Bytes, GGUFFile, TensorInfo
from engine.gguf_writer import NewTensor, u32, write_gguf
from engine.offload.bundle import UNDO_FIRST, is_bundled
from engine.quantise.importance import Importance
from engine.quantise.mixes import ALIASES, MIXES, Mix, Place, fitting
from engine.quantise.values import Floats, misfit, run
from engine.tensor_reader import TensorReader
from engine.watch import Watch
from kernels.certificates import Store
from kernels.certify import Certified
from kernels.choose import Chooser, Need
from kernels.cpu.cores import physical_cores
from kernels.cpu.team import Team
from kernels.kernel import Kernel
from reference.formats import FORMATS

PIECE = 2**22  # elements at a time
FLOATS = ("F32", "F16", "BF16")


class QuantiseError(ValueError):
    """A model that cannot be quantised so; the message is one plain line."""


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
        """Raises `QuantiseError` if there is none of that name."""
        name = self.type.upper()
        mix = MIXES.get(ALIASES.get(name, name))
        if mix is None:
            raise QuantiseError(f"there is no type {self.type!r}: want {', '.join(MIXES)}")
        return mix


@dataclass(frozen=True, slots=True)
class Choice:
    """A tensor and the format it gets, if another one; `note` says why it is not the one asked
    for, `importance` float32 [hidden] how much its columns matter, where that decides anything."""

    tensor: TensorInfo
    format: str
    note: str = ""
    importance: Floats | None = None

    @property
    def copied(self) -> bool:
        return self.format == self.tensor.type_name

    @property
    def source(self) -> Need:
        return Need("dequantise", self.tensor.type_name)

    @property
    def target(self) -> Need:
        op = "quantise" if self.importance is None else "quantise_weighted"
        return Need(op, self.format)

    @property
    def becomes(self) -> NewTensor:
        return NewTensor(self.tensor.name, self.format, self.tensor.dims)


def choices(file: GGUFFile, recipe: Recipe) -> list[Choice]:
    """What becomes of every tensor, in the file's order. Raises `QuantiseError`."""
    mix = recipe.mix
    if is_bundled(file):
        raise QuantiseError(f"{shown_path(file.path)}: {UNDO_FIRST}")
    for name in filter(None, (recipe.output, recipe.embedding, *(f for _, f in recipe.overrides))):
        _check_format(name)
    try:
        overrides = [(re.compile(pattern), name) for pattern, name in recipe.overrides]
    except re.error as error:
        raise QuantiseError(f"{error.pattern!r} is no regular expression: {error}") from None
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
        place = _place(file, tensor.name, recipe)
        wanted = named or (mix.base if recipe.pure else mix.choose(role, place))
    hidden = tensor.dims[-1]
    chosen = fitting(wanted, hidden)
    note = f"{chosen}, since rows of {hidden} take no {wanted}" if chosen != wanted else ""
    if recipe.importance is None or FORMATS[chosen].encode_weighted is None:
        return Choice(tensor, chosen, note)
    importance = recipe.importance.of(tensor.name, hidden)
    if importance is None:
        note = ", ".join(filter(None, (note, "not in the importance matrix")))
    return Choice(tensor, chosen, note, importance)


def _is_matrix(tensor: TensorInfo) -> bool:
    """Whether a tensor is quantised at all: norms, biases, routers and positions that were learned
    stay as they are."""
    kept = tensor.name.endswith(("_norm.weight", "ffn_gate_inp.weight", "position_embd.weight"))
    return tensor.name.endswith("weight") and len(tensor.dims) >= 2 and not kept


def _role(file: GGUFFile, name: str) -> str:
    """`output`, also of an embedding that is both, `token_embd`, or as in blk.0.ROLE.weight."""
    role = name.removesuffix(".weight").rpartition(".")[2]
    return "output" if role == "token_embd" and "output.weight" not in file.tensors else role


def _named(recipe: Recipe, name: str, role: str) -> str | None:
    """The recipe's own format of the output or the embedding; that of one which is both may be
    named as either."""
    if name == "token_embd.weight" and recipe.embedding:
        return recipe.embedding
    return recipe.output if role == "output" else None


def _place(file: GGUFFile, name: str, recipe: Recipe) -> Place:
    block = re.match(r"blk\.(\d+)\.", name)
    prefix = file.metadata.get("general.architecture", "")

    def count(key: str, default: int) -> int:
        value = file.metadata.get(f"{prefix}.{key}", default)
        return value if isinstance(value, int) and value > 0 else default

    heads = count("attention.head_count", 1)
    return Place(
        layer=int(block[1]) if block else 0,
        layers=count("block_count", 1),
        grouped=heads // count("attention.head_count_kv", heads),
        weighed=recipe.importance is not None,
    )


def quantise(
    file: GGUFFile,
    out: Path,
    recipe: Recipe,
    *,
    threads: int = 0,
    watch: Watch | None = None,
    certified: Certified | None = None,
) -> list[Choice]:
    """Write `out`; what became of each tensor.

    `watch` gets bytes of the source done and their total. Raises `QuantiseError`, `OutputError` or
    `GGUFError`, and leaves nothing of `out` then.
    """
    plan = choices(file, recipe)
    keys = keys_of(file) | {
        "general.file_type": u32(recipe.mix.file_type),
        "general.quantization_version": u32(GGML_QUANT_VERSION),
    }
    if recipe.importance:
        keys |= recipe.importance.provenance()
    total = sum(choice.tensor.n_bytes for choice in plan)

    def pieces(team: Team, kernels: dict[Need, Kernel]) -> Iterator[Bytes]:
        done = 0
        with TensorReader(file) as reader:
            for choice in plan:
                convert = _Converter(choice, kernels, team)
                for piece in reader.rows(choice.tensor, convert.bytes_at_once):
                    yield piece.reshape(-1) if choice.copied else convert(piece)
                    done += piece.nbytes
                    if watch:
                        watch(done, total)
            reader.check()

    kernels = Chooser(Store()).choose(_needs(plan), certified)
    with Team(threads or physical_cores()) as team:
        write_gguf(
            out,
            keys,
            [choice.becomes for choice in plan],
            pieces(team, kernels),
            magic=file.magic,
            version=file.version,
            reads=file.path,
        )
    return plan


def _needs(plan: Sequence[Choice]) -> list[Need]:
    changed = [choice for choice in plan if not choice.copied]
    sources = [choice.source for choice in changed]
    return list(dict.fromkeys(sources + [choice.target for choice in changed]))


class _Converter:
    """Rows of one tensor into its new format, by all threads of a team."""

    def __init__(self, choice: Choice, kernels: dict[Need, Kernel], team: Team) -> None:
        self.choice, self.team, self.row = choice, team, 0
        elements = max(1, math.prod(choice.tensor.dims))
        self.bytes_at_once = PIECE * choice.tensor.n_bytes // elements
        if not choice.copied:
            self.decode, self.encode = kernels[choice.source], kernels[choice.target]

    def __call__(self, rows: Bytes) -> Bytes:
        """uint8 [rows, row_bytes] -> uint8, flat."""
        hidden = self.choice.tensor.dims[-1]
        x = np.empty((len(rows), hidden), np.float32)
        run(self.team, self.decode, {"data": rows, "out": x})
        if fault := misfit(x, self.choice.format, self.row):
            raise QuantiseError(f"tensor {shown(self.choice.tensor.name)}: {fault}")
        target = FORMATS[self.choice.format]
        out = np.empty((len(rows), target.row_bytes(hidden)), np.uint8)
        importance = self.choice.importance
        matters = {} if importance is None else {"importance": importance}
        run(self.team, self.encode, {"x": x, "out": out, **matters})
        self.row += len(rows)
        return out.reshape(-1)
