"""How often each neuron was active over a text: PowerInfer's files, and one of ours.

    folder   activation_{i}.pt for each block i: a PyTorch tensor [ffn] of counts, nothing else
    .npz     blk.{i}.counts int64 [ffn] for each block i; tokens int64 [], how many were seen, 0 if
             nobody knows; model, a text [], the `identity` of the model, "" if nobody knows

The files of a folder say neither tokens nor model, so only what they have can be checked.
"""

import hashlib
import math
import re
import shutil
import tempfile
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine import torch_file
from engine.atomic_write import OutputError, atomic_write, check
from engine.errors import EngineError
from engine.file_errors import shown_path, unreadable, unwritable
from engine.gguf.file import GGUFFile
from reference.op import Array

MAX_COUNT = 2**40  # so that a sum over any model's neurons stays exact in int64
MAX_FFN = 2**24
MAX_BLOCKS = 2**12
HEADER = 2**12  # bytes that an array's member may have besides its elements
FILE = re.compile(r"activation_(\d+)\.pt")
COUNTS = re.compile(r"blk\.(\d+)\.counts")
ADVICE = "install torch, or write a .npz"


class StatisticsError(EngineError):
    """Statistics that cannot be read, or are of another model, in one plain line."""


@dataclass(frozen=True, slots=True)
class Activations:
    """Counts int64 [ffn] of each block: on how many of `tokens` tokens a neuron was active.
    `tokens` is 0 and `model`, the `identity` of the model, is "" where unknown."""

    counts: tuple[Array, ...]
    tokens: int = 0
    model: str = ""

    def check(self, file: GGUFFile, ffn: tuple[int, ...]) -> None:
        """Raise `StatisticsError` unless these are of this model, with so many neurons per
        block."""
        name = shown_path(file.path)
        if len(self.counts) != len(ffn):
            raise StatisticsError(
                f"the statistics are of another model: they have {len(self.counts)} blocks,"
                f" {name} has {len(ffn)}"
            )
        for i, (counts, size) in enumerate(zip(self.counts, ffn, strict=True)):
            if len(counts) != size:
                raise StatisticsError(
                    f"the statistics are of another model: block {i} has {len(counts)} neurons"
                    f" there, {size} in {name}"
                )
        if self.model and self.model != identity(file):
            raise StatisticsError(
                f"the statistics are of another model: its norms are not those of {name}"
            )

    @property
    def digest(self) -> str:
        """sha256 of the counts and the number of tokens."""
        digest = hashlib.sha256(f"{self.tokens}".encode())
        for counts in self.counts:
            digest.update(f" {len(counts)} ".encode() + counts.astype("<i8").tobytes())
        return digest.hexdigest()


def identity(file: GGUFFile) -> str:
    """sha256 of the norms' weights, by name: unchanged by another format of the matrices, other
    keys, or predictors."""
    digest = hashlib.sha256()
    for name in sorted(file.tensors):
        if name.endswith("_norm.weight"):
            digest.update(f"{name} ".encode() + file.tensor(name).tobytes())
    return digest.hexdigest()


def read(path: Path) -> Activations:
    """The statistics of a folder or a .npz file. Raises `StatisticsError`."""
    if path.is_dir():
        return _read_folder(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_npz(path, archive)
    except OSError as error:
        raise StatisticsError(unreadable(path, error)) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        raise StatisticsError(
            f"{shown_path(path)}: this is neither a folder of activation_{{i}}.pt nor a .npz"
            " of statistics, or it was cut short"
        ) from None


def write(path: Path, activations: Activations) -> None:
    """Write as .npz if the name ends so, otherwise as a folder, which requires torch. Replaces
    earlier files when all is written. Raises `OutputError` and `StatisticsError`."""
    if path.suffix == ".npz":
        arrays = {f"blk.{i}.counts": counts for i, counts in enumerate(activations.counts)}
        arrays |= {"tokens": np.array(activations.tokens), "model": np.array(activations.model)}
        with atomic_write(path) as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    else:
        _write_folder(path, activations)


def _write_folder(path: Path, activations: Activations) -> None:
    try:
        import torch
    except ImportError:
        raise StatisticsError(f"{shown_path(path)}: PyTorch's files need torch: {ADVICE}") from None
    check(path / "activation_0.pt" if path.is_dir() else path)
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f"{path.name}.") as aside:
            for i, counts in enumerate(activations.counts):
                torch.save(torch.from_numpy(counts.copy()), Path(aside, f"activation_{i}.pt"))
            path.mkdir(exist_ok=True)
            for old in path.iterdir():
                if FILE.fullmatch(old.name):
                    old.unlink()
            for new in Path(aside).iterdir():
                shutil.move(new, path / new.name)
    except OSError as error:
        raise OutputError(unwritable(path, error)) from None


def _read_folder(path: Path) -> Activations:
    files = _numbered({f.name: FILE.fullmatch(f.name) for f in path.iterdir()}, path)
    if not files:
        raise StatisticsError(f"{shown_path(path)}: there is no activation_0.pt in this folder")
    counts = []
    for name in files:
        where = f"{shown_path(path / name)}: "
        try:
            tensor = torch_file.load(path / name)
            if not isinstance(tensor, torch_file.StoredTensor):
                raise StatisticsError(f"{where}this is no tensor of counts")
            if math.prod(tensor.dims) > MAX_FFN:
                raise StatisticsError(f"{where}it has more than {MAX_FFN} elements")
            counts.append(_counts(tensor.read(), where))
        except torch_file.TorchFileError as error:
            raise StatisticsError(str(error)) from None
    return Activations(tuple(counts))


def _read_npz(path: Path, archive: zipfile.ZipFile) -> Activations:
    where = f"{shown_path(path)}: "
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    for name, info in members.items():
        if info.file_size > 8 * MAX_FFN + HEADER:
            raise StatisticsError(f"{where}{name} has more than {MAX_FFN} elements")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise StatisticsError(f"{where}{name} is packed in a way that no .npz is")
    names = _numbered({name: COUNTS.fullmatch(name) for name in members}, path)
    for name in ("blk.0.counts", "tokens", "model"):
        if name not in members:
            raise StatisticsError(f"{where}there is no array {name!r}")

    def array(name: str) -> Array:
        try:
            with archive.open(members[name]) as member:
                return np.asarray(np.lib.format.read_array(member, allow_pickle=False))
        except Exception:  # the header's parser and the archive raise errors of many types
            raise StatisticsError(f"{where}{name} is no array, or it was cut short") from None

    counts = tuple(_counts(array(name), f"{where}{name}: ") for name in names)
    tokens, model = array("tokens"), array("model")
    if tokens.dtype.kind not in "iu" or tokens.shape or not 0 <= tokens <= MAX_COUNT:
        raise StatisticsError(f"{where}tokens is no number of tokens")
    if model.dtype.kind != "U" or model.shape:
        raise StatisticsError(f"{where}model is no text")
    for name, found in zip(names, counts, strict=True):
        if tokens and found.max(initial=0) > tokens:
            raise StatisticsError(f"{where}{name}: a neuron was active on more than all tokens")
    return Activations(counts, int(tokens), str(model))


def _numbered(names: dict[str, re.Match[str] | None], path: Path) -> list[str]:
    """The matching names by their number; a missing or duplicate block is an error."""
    found = sorted((int(match[1]), name) for name, match in names.items() if match)
    if len(found) > MAX_BLOCKS:
        raise StatisticsError(f"{shown_path(path)}: there are more than {MAX_BLOCKS} blocks")
    for i, (number, name) in enumerate(found):
        if number != i:
            fault = f"block {i} is missing" if number > i else f"{name} is there twice"
            raise StatisticsError(f"{shown_path(path)}: {fault}")
    return [name for _, name in found]


def _counts(array: Array, where: str) -> Array:
    """int64 [ffn] from numbers of any type that are counts."""
    if array.dtype.kind not in "iuf" or array.ndim != 1 or not 0 < len(array) <= MAX_FFN:
        shape = " x ".join(map(str, array.shape)) or "one"
        raise StatisticsError(
            f"{where}want counts in one dimension, this is {shape} of {array.dtype}"
        )
    good = (array >= 0) & (array <= MAX_COUNT)
    if not good.all():
        i = int(np.argmin(good))
        raise StatisticsError(f"{where}neuron {i} has {array[i]}, which is no count")
    counts = array.astype(np.int64)
    if (counts != array).any():
        i = int(np.argmax(counts != array))
        raise StatisticsError(f"{where}neuron {i} has {array[i]}: want counts, not shares")
    return np.asarray(counts)
