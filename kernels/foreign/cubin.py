"""Kernels in machine code for NVIDIA's GPUs: names, parameters and resources read from a cubin,
without a GPU.

A cubin is an ELF file. A kernel's parameters stand in section .nv.info.KERNEL, as attributes of a
format, a number and a value, as CUDA's binary utilities print them.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import NamedTuple

ELF, FATBIN = b"\x7fELF", struct.pack("<I", 0xBA55ED50)
CUDA = 190  # e_machine
MOST_BYTES = 2**28
OF_BLACKWELL = 8  # ABI version from which on the architecture stands one byte further up
FUNCTION, NO_BITS = 2, 8  # kinds of symbols and sections
BYTES = 4  # the attribute format with a length field; values of others have two bytes
MOST_THREADS, REQUIRED_THREADS, PARAMETER, ALL_PARAMETERS, REGISTERS = 0x05, 0x10, 0x17, 0x19, 0x2F
ALL_REGISTERS = 2**16  # registers shared by the threads of a block, allocated in eights per thread
SHARED = {75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 120: 99, 121: 99}  # KiB a block
MOST_SHARED = 227  # KiB: sm_90, sm_100 and unlisted ones
RESERVED, RESERVES = 1024, 90  # bytes of a block's shared memory reserved by CUDA, since sm_90


class CubinError(ValueError):
    """A damaged or foreign file, an unknown kernel, or a launch beyond the GPU's limits."""


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """A kernel for GPUs of a compute `capability`, e.g. 90: `parameters` as (offset, bytes) in
    order, `registers` per thread, bytes of static `shared` memory per block, the maximum number of
    `threads` per block, and the block size `wanted` in x, y and z if it requires one."""

    name: str
    capability: int
    parameters: tuple[tuple[int, int], ...]
    registers: int
    shared: int
    threads: int
    wanted: tuple[int, ...] = ()

    def __str__(self) -> str:
        bytes_ = ", ".join(str(size) for _, size in self.parameters)
        return (
            f"{self.name} is for sm_{self.capability}, has {len(self.parameters)} parameters (of"
            f" {bytes_} bytes), {self.registers} registers a thread, {self.shared:,} bytes of"
            " shared memory"
        )

    def demand(self, launch: Sequence[int]) -> None:
        """Raise CubinError for a launch that no GPU of this capability can do."""
        wide, threads, shared = tuple(launch[3:6]), prod(launch[3:6]), launch[6]
        held = -(-self.registers // 8) * 8 * -(-threads // 32) * 32
        most = 1024 * SHARED.get(self.capability, MOST_SHARED)
        if self.wanted and wide != self.wanted:
            want = "x".join(map(str, self.wanted))
            raise CubinError(f"{self.name} was compiled for {want} threads, not {threads}")
        if self.threads and threads > self.threads:
            raise CubinError(f"{self.name} was compiled for {self.threads} threads, not {threads}")
        if held > ALL_REGISTERS:
            raise CubinError(
                f"{self.name}: {threads} threads of {self.registers} registers are more than the"
                f" {ALL_REGISTERS:,} that there are"
            )
        if self.shared + shared > most:
            raise CubinError(
                f"{self.name}: {self.shared:,} + {shared:,} bytes of shared memory, sm_"
                f"{self.capability} has {most:,}"
            )


class _Section(NamedTuple):
    name: str
    kind: int
    begin: int
    size: int
    link: int  # the section with a table's names


def read_kernel(file: Path, name: str) -> GpuKernel:
    """Read a kernel of a cubin; CubinError in one line if the file or the kernel is not there."""
    found = file.stat()
    if found.st_size > MOST_BYTES:
        raise CubinError(f"{file.name} has {found.st_size:,} bytes, a cubin {MOST_BYTES:,} at most")
    return _read(file, name, found.st_mtime_ns)


@cache
def _read(file: Path, name: str, changed: int) -> GpuKernel:
    """Parse a file; the modification time is part of the cache's key."""
    whole = file.read_bytes()
    try:
        return _kernel(whole, name)
    except (struct.error, IndexError, KeyError, ValueError) as error:
        if isinstance(error, CubinError):
            raise CubinError(f"{file.name}: {error}") from None
        raise CubinError(f"{file.name} is damaged: its tables do not fit its bytes") from None


def _kernel(whole: bytes, name: str) -> GpuKernel:
    capability, sections = _capability(whole), _sections(whole)
    by_name = {section.name: section for section in sections}
    there = _functions(whole, sections)
    if name not in there:
        known = ", ".join(sorted(there)) or "none at all"
        raise CubinError(f'it has no kernel {name}; it has {known} (extern "C" keeps a name)')
    found = list(_attributes(_bytes(whole, by_name[f".nv.info.{name}"])))
    parameters = sorted(struct.unpack("<IHHI", v) for kind, v in found if kind == PARAMETER)
    spans = tuple((offset, size >> 18) for _, _, offset, size in parameters)
    every = sum(struct.unpack("<H", v)[0] for kind, v in found if kind == ALL_PARAMETERS)
    whole_ones = [number for _, number, *_ in parameters] == list(range(len(parameters)))
    if not whole_ones or every != sum(spans[-1] if spans else ()):
        raise CubinError(f"what it says of the parameters of {name} does not go together")
    limits = {k: struct.unpack("<3I", v) for k, v in found if k in (MOST_THREADS, REQUIRED_THREADS)}
    general = _attributes(_bytes(whole, by_name[".nv.info"]))
    registers = dict(struct.unpack("<II", value) for kind, value in general if kind == REGISTERS)
    shared = by_name[f".nv.shared.{name}"].size if f".nv.shared.{name}" in by_name else 0
    return GpuKernel(
        name, capability, spans, registers[there[name]],
        max(0, shared - RESERVED * (capability >= RESERVES)),
        prod(limits.get(MOST_THREADS, (0,))), limits.get(REQUIRED_THREADS, ()),
    )  # fmt: skip


def _capability(whole: bytes) -> int:
    """The compute capability in the file's header."""
    if whole.startswith(FATBIN):
        raise CubinError("it is a fat binary; cuobjdump -xelf all takes the cubins out of it")
    if whole.lstrip()[:8] in (b".version", b"//\n// Ge"):
        raise CubinError("it is PTX; ptxas -arch=sm_90 makes a cubin of it")
    if not whole.startswith(ELF):
        raise CubinError("it is no ELF file, as a cubin is")
    wide, order, version = whole[4], whole[5], whole[8]
    machine = struct.unpack_from("<H", whole, 18)[0]
    if (wide, order) != (2, 1) or machine != CUDA:
        raise CubinError(f"it is an ELF file for machine {machine}, not for CUDA ({CUDA})")
    flags = struct.unpack_from("<I", whole, 48)[0]
    return int(flags >> 8 if version >= OF_BLACKWELL else flags) & 0xFF


def _sections(whole: bytes) -> list[_Section]:
    (at,) = struct.unpack_from("<Q", whole, 40)
    size, count, names = struct.unpack_from("<3H", whole, 58)
    rows = [struct.unpack_from("<IIQQQQII", whole, at + size * i) for i in range(count)]
    made = [_Section("", row[1], row[4], row[5], row[6]) for row in rows]
    text = _bytes(whole, made[names]) if made else b""
    return [
        section._replace(name=_text(text, row[0])) for section, row in zip(made, rows, strict=True)
    ]


def _functions(whole: bytes, sections: list[_Section]) -> dict[str, int]:
    """Kernels with their symbol numbers: functions that declare their parameters."""
    found, names = {}, {section.name for section in sections}
    for table in (section for section in sections if section.name == ".symtab"):
        text = _bytes(whole, sections[table.link])
        symbols = struct.iter_unpack("<IBBHQQ", _bytes(whole, table))
        for number, (at, kind, *_) in enumerate(symbols):
            if kind & 15 == FUNCTION and f".nv.info.{_text(text, at)}" in names:
                found[_text(text, at)] = number
    return found


def _attributes(info: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at < len(info):
        form, kind, size = struct.unpack_from("<BBH", info, at)
        at += 4
        value = info[at : at + size] if form == BYTES else info[at - 2 : at]
        if form == BYTES and len(value) < size:
            raise IndexError
        yield kind, value
        at += size if form == BYTES else 0


def _bytes(whole: bytes, section: _Section) -> bytes:
    found = b"" if section.kind == NO_BITS else whole[section.begin : section.begin + section.size]
    if section.kind != NO_BITS and len(found) < section.size:
        raise IndexError
    return found


def _text(text: bytes, at: int) -> str:
    return text[at : text.index(b"\0", at)].decode()
