"""Weights in the layouts that kernels stream, packed at load, and kept on disk where that is asked.

A kept file belongs to one path of a model and is replaced when that model or a layout changes:

    packed weights   each from a multiple of 4096 bytes
    index            JSON: what was packed, how, and where it lies

The index names the model's file (path, size, dates, inode, sha256 of its header) and all that the
code that packed it depends on. It is written last, and only a file of the right length that ends
with the very index this load would write is used. The weights' own bytes are not summed: that would
take about as long as packing.
"""

import hashlib
import json
import math
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from engine.config import ModelError
from engine.gguf.file import GGUFFile, stamp_of
from engine.progress import ProgressCallback
from kernels.cache import cache_folder, made, ours
from kernels.cpu.formats.packing import Packing, aligned
from kernels.cpu.runtime.team import Program, Team
from reference.op import Array

PIECE = 2**26  # bytes of the model's file packed at a time
SMALL_PIECE = 2**23  # where memory is scarce
PAGE = 4096
PART_SUFFIX = ".part"
ABANDONED = 3600  # seconds without a write after which an unfinished file is abandoned


@dataclass(frozen=True, slots=True)
class Packer:
    """How to pack: threads, `memory(begin, size)` for a packed weight's bytes, and how many bytes
    of the file to process at a time."""

    team: Team
    memory: Callable[[int, int], Array]
    piece: int


class Job(Protocol):
    """What is packed, and how."""

    @property
    def layout(self) -> str:
        """Everything that determines the packed bytes, besides the file's."""

    def source_bytes(self, file: GGUFFile) -> int:
        """Bytes in the model's file."""

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        """Shape of the packed uint8 array."""

    def pieces(self, file: GGUFFile, packer: Packer) -> Iterator[tuple[int, Array, int]]:
        """Pack piece by piece: yields the offset in the packed weight, the piece, and the number of
        the file's bytes it came from."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor of the model's file in a kernel's layout."""

    tensor: str
    packing: Packing

    @property
    def layout(self) -> str:
        return f"{self.tensor} {self.packing!r} {self.packing.share.key}"

    def source_bytes(self, file: GGUFFile) -> int:
        return file.tensors[self.tensor].n_bytes

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        return self.packing.shape(file.tensor(self.tensor))

    def pieces(self, file: GGUFFile, packer: Packer) -> Iterator[tuple[int, Array, int]]:
        packing, weight = self.packing, file.tensor(self.tensor)
        matrices = weight if weight.ndim == 3 else weight[None]
        step = max(1, packer.piece // (packing.lanes * weight.shape[-1])) * packing.lanes
        for number, first in product(range(len(matrices)), range(0, matrices.shape[1], step)):
            matrix = matrices[number]
            rows = np.ascontiguousarray(matrix[first : first + step])
            begin, size = packing.place(matrix, first), packing.place(matrix, len(rows))
            begin += number * packing.place(matrix, len(matrix))
            target = packer.memory(begin, size)
            packer.team.run(Program([(packing.share, packing.args_of(rows, target))]))
            file.release(self.tensor)
            yield begin, target, rows.nbytes


@dataclass(frozen=True, slots=True)
class Copied:
    """A tensor's rows as in the file, for kernels that take them so."""

    tensor: str

    @property
    def layout(self) -> str:
        return f"{self.tensor} as stored"

    def source_bytes(self, file: GGUFFile) -> int:
        return file.tensors[self.tensor].n_bytes

    def shape(self, file: GGUFFile) -> tuple[int, ...]:
        return tuple(file.tensor(self.tensor).shape)

    def pieces(self, file: GGUFFile, packer: Packer) -> Iterator[tuple[int, Array, int]]:
        weight, begin = file.tensor(self.tensor), 0
        matrices = weight if weight.ndim == 3 else weight[None]
        step = max(1, packer.piece // weight.shape[-1])
        for matrix, first in product(matrices, range(0, matrices.shape[1], step)):
            some = matrix[first : first + step]
            target = packer.memory(begin, some.nbytes)
            target.reshape(some.shape)[:] = some
            file.release(self.tensor)
            yield begin, target, some.nbytes
            begin += some.nbytes


Jobs = Mapping[str, Job]  # by the names of the packed weights


def packed_weights(
    jobs: Jobs,
    file: GGUFFile,
    team: Team,
    progress: ProgressCallback | None,
    keep: bool,
    ready: Mapping[str, Array],
) -> tuple[dict[str, Array], list[str]]:
    """The packed weights by name, as their packings shape them, and notes: why they could not be
    kept.

    With `keep` they are mapped from the file that an earlier load kept; if there is none, or not of
    these jobs, they are packed and kept. Those that are `ready` are not packed again.
    """
    kept = Kept(jobs, file, Places(jobs, file))
    if keep and (found := kept.load()) is not None:
        if progress:
            progress(_total(jobs, file), _total(jobs, file))
        return found, []
    missing = {name: job for name, job in jobs.items() if name not in ready}
    weights = {name: ready[name] for name in jobs if name in ready}
    if missing:
        weights |= pack(missing, file, Places(missing, file), team, progress)
    if not keep:
        return weights, []
    fault = kept.save((name, 0, weight) for name, weight in weights.items())
    return weights, [fault] if fault else []


class Places:
    """Layout of the packed weights in one allocation, so that it can use huge pages, or in one
    file.

    begins, sizes   in bytes, by name; each weight begins on a page boundary end             of the
    last page
    """

    def __init__(self, jobs: Jobs, file: GGUFFile) -> None:
        self.begins: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self._jobs, self._file = jobs, file
        self.end = 0
        for name, job in jobs.items():
            self.begins[name], self.sizes[name] = self.end, math.prod(job.shape(file))
            self.end += paged(self.sizes[name])

    def views(self, memory: Array) -> dict[str, Array]:
        """The weights in `memory`, uint8 [end or more], shaped."""
        return {
            name: self.shaped(name, memory[begin : begin + self.sizes[name]])
            for name, begin in self.begins.items()
        }

    def shaped(self, name: str, packed: Array) -> Array:
        """A weight's packed bytes in the shape that kernels take."""
        return packed.reshape(self._jobs[name].shape(self._file))


def paged(size: int) -> int:
    """Size rounded up to whole pages."""
    return -(-size // PAGE) * PAGE


def pack(
    jobs: Jobs, file: GGUFFile, places: Places, team: Team, progress: ProgressCallback | None = None
) -> dict[str, Array]:
    """The packed weights, one after the other by all threads.

    Each piece of the file is released once it is packed, so that besides the packed weights at most
    one piece of the file is in memory.
    """
    weights = places.views(aligned(places.end))

    def memory(name: str, begin: int, size: int) -> Array:
        return weights[name].reshape(-1)[begin : begin + size]

    for _ in pieces(jobs, file, team, progress, memory, PIECE):
        pass
    return weights


def pieces(
    jobs: Jobs,
    file: GGUFFile,
    team: Team,
    progress: ProgressCallback | None,
    memory: Callable[[str, int, int], Array],
    piece: int,
) -> Iterator[tuple[str, int, Array]]:
    """Yield the weights piece by piece, each packed into memory(name, begin, size): the weight's
    name, the offset of the piece in it, and its bytes."""
    done, total = 0, _total(jobs, file)
    for name, job in jobs.items():
        packer = Packer(team, partial(memory, name), piece)
        for begin, packed, read in job.pieces(file, packer):
            yield name, begin, packed
            done += read
            if progress:
                progress(done, total)


def _total(jobs: Jobs, file: GGUFFile) -> int:
    return sum(job.source_bytes(file) for job in jobs.values())


def packed_file(
    jobs: Jobs, file: GGUFFile, places: Places, team: Team, progress: ProgressCallback | None
) -> tuple[Path, tuple[int, ...]]:
    """The file of packed weights on disk, created if it is missing, and its stamp; at most one
    piece of it is in memory at a time.

    Raises `ModelError` if it cannot be written.
    """
    kept = Kept(jobs, file, places)

    def memory(name: str, begin: int, size: int) -> Array:
        return aligned(size)

    found = kept.open()
    if found is None:
        if fault := kept.save(pieces(jobs, file, team, progress, memory, SMALL_PIECE)):
            raise ModelError(
                f"{fault}; a ram_budget wants {places.end / 1e9:.1f} GB there (ASSAY_CACHE names"
                " another folder)"
            )
        found = kept.open()
    if found is None:
        raise ModelError(f"{kept.path}: another program has replaced it: try again")
    with found:
        os.posix_fadvise(found.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return kept.path, stamp_of(found)


class Kept:
    """The file of these jobs on disk, at a `path` that belongs to the model's."""

    def __init__(self, jobs: Jobs, file: GGUFFile, places: Places) -> None:
        model = os.path.realpath(file.path)
        name = hashlib.sha256(os.fsencode(model)).hexdigest()[:32]
        self.path = cache_folder() / "packed" / f"{name}.packed"
        self.places = places
        index = {
            "model": model,
            "stamp": file.stamp,
            "header": file.header,
            "layouts": {name: job.layout for name, job in jobs.items()},
            "begins": places.begins,
            "sizes": places.sizes,
        }
        self.index = json.dumps(index).encode()

    def open(self) -> BinaryIO | None:
        """Open the file if it is the one wanted and writable only by us."""
        if not ours(self.path.parent):
            return None
        try:
            file = self.path.open("rb")
        except OSError:
            return None
        size = file.seek(0, os.SEEK_END)
        file.seek(self.places.end)
        if size == self.places.end + len(self.index) and file.read() == self.index:
            return file
        file.close()
        return None

    def load(self) -> dict[str, Array] | None:
        """The weights as read-only views of the mapped file; None if it is not the one wanted."""
        if (file := self.open()) is None:
            return None
        with file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(mmap, "MADV_WILLNEED"):
            data.madvise(mmap.MADV_WILLNEED)
        return self.places.views(np.frombuffer(data, np.uint8))

    def save(self, packed: Iterable[tuple[str, int, Array]]) -> str:
        """Write pieces of weights (name, offset, bytes) to a temporary file and replace the old one
        atomically; returns the reason if that fails.

        A failure is not the model's, which runs without the file.
        """
        folder = self.path.parent
        try:
            made(folder)
            _clear_abandoned(folder)
            with tempfile.NamedTemporaryFile(dir=folder, suffix=PART_SUFFIX, delete=False) as aside:
                try:
                    for name, begin, piece in packed:
                        aside.seek(self.places.begins[name] + begin)
                        aside.write(piece.data)
                    aside.seek(self.places.end)
                    aside.write(self.index)
                    aside.flush()
                    os.fsync(aside.fileno())  # or a crash could leave zeros in a finished file
                    Path(aside.name).replace(self.path)
                except BaseException:
                    Path(aside.name).unlink(missing_ok=True)
                    raise
        except OSError as error:
            return f"packed weights cannot be kept in {folder}: {error.strerror or error}"
        return ""


def _clear_abandoned(folder: Path) -> None:
    """Remove files of loads that were killed; others may be doing the same."""
    for unfinished in folder.glob(f"*{PART_SUFFIX}"):
        with suppress(FileNotFoundError):
            if time.time() - unfinished.stat().st_mtime > ABANDONED:
                unfinished.unlink()
