"""Parameters of a C function: from its source, from a manifest, or in the op's own order."""

import re
from dataclasses import dataclass

from reference.op import DTYPES, Op

# C and C++ types by name: ctypes' names without `c_`.
C_TYPES = {
    "float": "float", "double": "double", "char": "char", "signed char": "int8",
    "int8_t": "int8", "uint8_t": "uint8", "unsigned char": "uint8", "int16_t": "int16",
    "uint16_t": "uint16", "short": "int16", "unsigned short": "uint16", "int": "int32",
    "int32_t": "int32", "unsigned": "uint32", "unsigned int": "uint32", "uint32_t": "uint32",
    "long": "long", "unsigned long": "ulong", "int64_t": "int64", "uint64_t": "uint64",
    "long long": "int64", "unsigned long long": "uint64", "size_t": "size_t",
    "ptrdiff_t": "ssize_t", "ssize_t": "ssize_t", "bool": "bool", "_Bool": "bool",
}  # fmt: skip
OURS = {
    "f32": "float", "f64": "double", "i8": "int8", "u8": "uint8", "u16": "uint16", "u32": "uint32",
    "i32": "int32", "i64": "int64", "u64": "uint64",
}  # fmt: skip
QUALIFIERS = re.compile(r"\b(const|volatile|restrict|__restrict__|__restrict|struct|register)\b")
COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ANY = ("", "char", "void")  # pointers to these may point to any type


class PrototypeError(ValueError):
    """A parameter that is not the op's, or is of another type."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter by name, or an expression of sizes: a `pointer` or a value, of this ctypes type,
    "" if not given."""

    name: str
    type: str = ""
    pointer: bool = False

    @classmethod
    def parse(cls, word: str) -> "Parameter":
        """Parse a manifest's entry: `hidden:i32`, `tokens * hidden:i32`, or a bare name."""
        name, _, kind = word.partition(":")
        if kind and kind not in OURS:
            raise PrototypeError(f"{word}: want one of {', '.join(OURS)} behind the colon")
        return cls(name.strip(), OURS.get(kind, ""))

    def checked(self, op: Op, sizes: tuple[str, ...]) -> str:
        """The ctypes type that the parameter is passed as."""
        arrays = {a.name: a for a in (*op.inputs, *op.outputs) if a.axes}
        scalars = {a.name: a for a in op.inputs if not a.axes}
        if array := arrays.get(self.name):
            wanted = OURS.get(array.dtype, "uint8")
            if not self.pointer and self.type:
                raise PrototypeError(f"{self.name} is an array: its parameter is a pointer")
            known = self.type not in _ANY and self.type in C_TYPES.values()
            if known and array.dtype != "format" and _alike(self.type) != _alike(wanted):
                raise PrototypeError(f"{self.name} holds {wanted}, not {self.type}")
            return "void_p"
        if self.name in scalars:
            return self.type or OURS[scalars[self.name].dtype]
        if self.name in sizes or not self.name.isidentifier():
            return self.type or "int64"
        there = ", ".join([*arrays, *scalars, *sizes])
        raise PrototypeError(f"the parameter {self.name!r} is none of {there}")


def _alike(kind: str) -> str:
    """Types of the same size and kind are interchangeable."""
    wide = {"long": "int64", "ulong": "uint64", "size_t": "uint64", "ssize_t": "int64"}
    return wide.get(kind, kind)


def default(op: Op) -> list[Parameter]:
    """The op's inputs and outputs in the order of its signature, arrays as pointers and scalars by
    value; then every named size as int64_t, in order of first appearance."""
    named = [Parameter(a.name, pointer=bool(a.axes)) for a in (*op.inputs, *op.outputs)]
    axes = (axis for a in (*op.inputs, *op.outputs) for axis in a.axes if axis.isidentifier())
    taken = {p.name for p in named}
    return named + [Parameter(f"n_{a}" if a in taken else a) for a in dict.fromkeys(axes)]


def prototype(text: str, name: str) -> tuple[list[Parameter], bool] | None:
    """The parameters of a function in C source, and whether it returns a status; None if its
    declaration is not found."""
    text = COMMENTS.sub(" ", text)
    found = re.search(rf"([\w\s*]+?)\b{re.escape(name)}\s*\(([^(){{}};]*)\)\s*\{{", text)
    if not found:
        return None
    result = found[1].split()
    words = (word for word in found[2].split(",") if word.split() not in ([], ["void"]))
    parameters = [_parameter(word) for word in words]
    return parameters, bool(result) and result[-1] == "int"


def _parameter(text: str) -> Parameter:
    pointer = "*" in text or "[" in text
    words = QUALIFIERS.sub(" ", re.sub(r"[*\[\]&]", " ", text)).split()
    if not words:
        raise PrototypeError(f"{text.strip()!r} is no parameter")
    return Parameter(words[-1], C_TYPES.get(" ".join(words[:-1]), ""), pointer)


assert set(OURS) == set(DTYPES)
