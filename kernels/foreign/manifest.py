"""What a file says of itself: a few lines of TOML beside it, or in comments at its top.

Beside `my_norm.c` they are `my_norm.toml`; in the file each begins with `// assay:` or `# assay:`.
"""

import ast
import operator
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from math import prod
from pathlib import Path
from typing import Any

MARKS = ("// assay:", "# assay:")
ARRAYS = ("numpy", "torch", "jax", "triton")
BINARY = (".so", ".dylib", ".cubin")  # kinds of files without comments
MOST_THREADS = 1024  # threads per block, on every GPU
TOP = 100  # lines searched for comments
VARIABLE = re.compile(r"\$\{?(?!ORIGIN|LIB\b|PLATFORM)([A-Za-z_]\w*)")  # not the linker's
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip


class ManifestError(ValueError):
    """A manifest that makes no sense."""


class LaunchError(ManifestError):
    """A launch with more threads, blocks or memory than a GPU has, at some sizes."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """- `op`, `format`: what it is a kernel of, for whoever does not say so.
    - `name`: the function; `arguments`: in order, e.g. ["x", "out", "hidden:i32", "tokens * 2"].
    - `formats`: several, each of which makes a solution of a board.
    - `flags`: of the compiler; $NAME in them is from the environment.
    - `arrays`: one of ARRAYS, whose arrays it wants.
    - `align`: bytes of which each array begins at a multiple; 0: of its elements' size.
    - `takes`: the sizes that it can do, e.g. "hidden % 64 == 0 and tokens <= 512".
    - `numerics`: "exact", or what its bound is, e.g. "bf16".
    - `blocks`, `threads`, `shared`: how a CUDA kernel is launched, in sizes, e.g. ["tokens"], 256;
      blocks, and threads of a block, may be several, in x, y and z.
    """

    op: str = ""
    format: str = ""
    name: str = ""
    formats: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    arrays: str = ""
    align: int = 0
    takes: str = ""
    numerics: str = ""
    blocks: tuple[Any, ...] = ()  # not given: one
    threads: Any = 256
    shared: Any = 0

    def __post_init__(self) -> None:
        for name in ("formats", "arguments", "flags", "blocks", "threads"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        for name in ("formats", "arguments", "flags"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(word, str) for word in value):
                raise ManifestError(f"{name} is a list of words, not {value!r}")
        for f in fields(self):
            value = getattr(self, f.name)
            if f.type in (str, int) and not isinstance(value, f.type):
                wanted = "a text" if f.type is str else "a whole number"
                raise ManifestError(f"`{f.name}` is {wanted}, not {value!r}")
        if self.arrays not in ("", *ARRAYS):
            raise ManifestError(f"arrays are one of {', '.join(ARRAYS)}, not {self.arrays!r}")
        if self.align < 0 or self.align & (self.align - 1) or self.align > 4096:
            raise ManifestError(f"align is a power of two up to 4096, not {self.align}")
        for name in ("blocks", "threads"):
            if len(given := _listed(getattr(self, name))) > 3 or (name, given) == ("threads", ()):
                raise ManifestError(f"{name} are in x, y and z, not {list(given)}")

    def serves(self, sizes: Mapping[str, Any]) -> bool:
        """Whether the candidate takes these sizes."""
        return not self.takes or bool(evaluated(self.takes, sizes))

    def launch(self, sizes: Mapping[str, Any]) -> list[int]:
        """Grid in x, y and z, block in x, y and z, and bytes of dynamic shared memory."""
        blocks, threads = ([*_listed(said), 1, 1, 1][:3] for said in (self.blocks, self.threads))
        found = [int(evaluated(str(e), sizes)) for e in (*blocks, *threads, self.shared)]
        x, y, z, *wide, shared = found
        if prod(wide) > MOST_THREADS or min(wide) < 1:
            what = f"{'x'.join(map(str, wide))} threads in a block: 1 to {MOST_THREADS}"
        elif not (0 <= x < 2**31 and 0 <= y < 2**16 and 0 <= z < 2**16):
            what = f"{x}x{y}x{z} blocks: at most 2147483647x65535x65535"
        elif shared < 0:
            what = f"{shared} bytes of shared memory"
        else:
            return found
        raise LaunchError(f"no GPU launches {what}")


def _listed(said: Any) -> tuple[Any, ...]:
    return said if isinstance(said, tuple) else (said,)


def read_manifest(file: Path, given: Mapping[str, Any], beside: Path | None = None) -> Manifest:
    """Merge the manifest `beside` the file (by default under its name), the one in comments at its
    top, and the one given, which takes precedence."""
    said: dict[str, Any] = {}
    where = beside or file.with_suffix(".toml")
    if beside or where.is_file():
        try:
            said |= _parsed(where.read_text(), where.name)
        except (OSError, UnicodeDecodeError) as error:
            raise ManifestError(f"the manifest {where} cannot be read: {error}") from None
    if file.suffix not in BINARY:
        lines = file.read_text(errors="replace").splitlines()[:TOP]
        text = "\n".join(
            line.partition("assay:")[2].strip() for line in lines if line.startswith(MARKS)
        )
        said |= _parsed(text, file.name)
    said |= given
    known = [f.name for f in fields(Manifest)]
    if unknown := sorted(set(said) - set(known)):
        raise ManifestError(f"{file.name}: {unknown[0]} is none of {', '.join(known)}")
    found = Manifest(**said)
    return replace(found, flags=tuple(_expanded(flag, file) for flag in found.flags))


def _expanded(flag: str, file: Path) -> str:
    """Replace $NAME by the environment's values."""
    found = os.path.expandvars(flag)
    if lacking := VARIABLE.search(found):
        raise ManifestError(f"{file.name} wants {lacking[1]} in the environment: {flag}")
    return found


def _parsed(text: str, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{name}: {error}") from None


def evaluated(text: str, sizes: Mapping[str, Any]) -> Any:
    """Evaluate an expression of sizes: integers, + - * // %, comparisons, and, or, not, min,
    max."""

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name) if name in sizes:
                return sizes[name]
            case ast.Name(id=name):
                known = ", ".join(n for n, v in sizes.items() if isinstance(v, int))
                raise ManifestError(f"{text!r}: {name} is none of {known}")
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _BINARY[type(op)](value(left), value(right))
            case ast.BoolOp(op=op, values=values):
                every = [value(v) for v in values]
                return all(every) if isinstance(op, ast.And) else any(every)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not value(operand)
            case ast.Compare(left=left, ops=ops, comparators=others):
                items = [value(n) for n in (left, *others)]
                pairs = zip(items, ops, items[1:], strict=False)
                return all(_BINARY[type(o)](a, b) for a, o, b in pairs)
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=[_, *_] as args):
                return (min if name == "min" else max)(value(a) for a in args)
        raise ManifestError(f"{text!r} is no expression of sizes")

    try:
        return value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ZeroDivisionError, KeyError, RecursionError) as error:
        raise ManifestError(f"{text!r}: {error}") from None
