"""A minimal reader of 64-bit ELF files: sections and symbols."""

import struct
from dataclasses import dataclass

HEADER = struct.Struct("<16s2HI3QI6H")
SECTION = struct.Struct("<2I4Q2I2Q")
SYMBOL = struct.Struct("<I2B H2Q")

MAGIC = b"\x7fELF\x02\x01\x01"  # of 64 bits, little-endian
WRITE, ALLOC = 1, 2  # flags of sections
SYMBOLS, EMPTY = 2, 8  # types of sections


class ELFError(ValueError):
    """A malformed file, in one line."""


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    type: int
    flags: int
    data: bytes
    size: int
    link: int


@dataclass(frozen=True, slots=True)
class Symbol:
    """`section` is the index of its section, 0 if it is undefined here."""

    name: str
    section: int


def sections_of(file: bytes) -> list[Section]:
    try:
        return _sections(file)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise ELFError(f"no ELF file of 64 bits: {error}") from None


def _sections(file: bytes) -> list[Section]:
    if not file.startswith(MAGIC):
        raise ELFError("it does not begin as one")
    header = HEADER.unpack_from(file)
    begin, size, count, names = header[6], header[11], header[12], header[13]
    rows = [SECTION.unpack_from(file, begin + size * i) for i in range(count)]
    strings = rows[names][4]
    found = []
    for name, kind, flags, _, offset, length, link, *_ in rows:
        data = b"" if kind == EMPTY else file[offset : offset + length]
        if kind != EMPTY and len(data) != length:
            raise ELFError("it is cut short")
        found.append(Section(_string(file, strings + name), kind, flags, data, length, link))
    return found


def symbols_of(sections: list[Section]) -> list[Symbol]:
    found = []
    for table in (s for s in sections if s.type == SYMBOLS):
        strings = sections[table.link].data
        for name, _, _, section, *_ in SYMBOL.iter_unpack(table.data):
            found.append(Symbol(_string(strings, name), section))
    return found


def _string(strings: bytes, begin: int) -> str:
    return strings[begin : strings.index(b"\0", begin)].decode()
