"""What each kernel consists of: its functions' bytecode, and all that these close over or name.

A mutant can only break kernels for which this changes, and of those only the ones whose machine
code or row changes: for the others it is proved equivalent.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core.typing.templates import builtin_registry

from kernels.certificates import code_of
from kernels.cpu import quantise_activations
from kernels.cpu.runtime.closures import modules_of as closed_over
from kernels.cpu.runtime.share import Share, pack_words
from kernels.kernel import Kernel
from kernels.provenance import closure
from reference.formats import FORMATS
from reference.quantise_activations import QUANTISING


def modules_of(kernel: Kernel) -> set[str]:
    """The modules under kernels/cpu that make up a kernel."""
    called = [share.calls for share in kernel.shares if share.calls]
    shares = [*kernel.shares, *called, *([kernel.pack.share] if kernel.pack else [])]
    found = set().union(*(closure(m) for share in shares for m in closed_over(share.function)))
    return {name for name in found if name.startswith("kernels.cpu.")}


@cache
def _overloads() -> dict[Any, list[FunctionType]]:
    """Our functions that define the meaning of others in compiled code, by those."""
    found: dict[Any, list[FunctionType]] = {}
    for symbol, kind in builtin_registry.globals:
        for template in getattr(kind, "templates", ()):
            meaning = getattr(template, "_overload_func", None)
            if meaning and _ours(meaning.__module__):
                found.setdefault(symbol, []).append(meaning)
    return found


def _ours(module: str | None) -> bool:
    return (module or "").startswith("kernels.")


class Parts:
    """A walk over a kernel's objects, with or without compiled ones, in its own format only."""

    def __init__(self, kernel: Kernel, compiled: bool = True) -> None:
        self.digest, self.size, self._compiled = hashlib.sha256(), 0, compiled
        self.modules = set[str]()
        self._format, self._seen, self._kept = kernel.format, {}, []
        modules = modules_of(kernel)
        waiting: list[Any] = [kernel, pack_words]
        if kernel.activations in QUANTISING:
            waiting.append(quantise_activations.SHARES[kernel.activations])
        for symbol, meanings in _overloads().items():
            if not _ours(getattr(symbol, "__module__", "")):  # operators: code does not name them
                waiting += [m for m in meanings if m.__module__ in modules]
        while waiting:
            waiting += self._visit(waiting.pop())

    def _tell(self, *words: object) -> None:
        self.digest.update(repr(words).encode())

    def _visit(self, value: Any) -> Iterator[Any]:
        if isinstance(value, str | bytes | int | float | np.generic | None):
            self._tell(value)
            return
        if id(value) in self._seen:
            self._tell("again", self._seen[id(value)])
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)  # or another would get its id
        self._tell(type(value).__name__)
        made_of = ("py_func", "_defn", "__wrapped__")  # compiled, an intrinsic, kept by a cache
        function = next((getattr(value, n) for n in made_of if hasattr(value, n)), value)
        match function:
            case Share() if not self._compiled:
                self._tell(function.signature)
            case np.ndarray():
                self._tell(function.dtype.str, function.shape, function.tobytes())
            case tuple() | list():
                yield from function
            case set() | frozenset():
                yield from sorted(function, key=repr)
            case dict() if function.keys() and function.keys() <= FORMATS.keys():
                yield function.get(self._format)
            case dict():
                for key, element in function.items():
                    yield from (key, element)
            case partial():
                yield from (function.func, function.args, function.keywords)
            case CodeType():
                self.size += len(function.co_code)
                self._tell(function.co_code, function.co_names, function.co_varnames)
                yield function.co_consts
            case FunctionType():
                yield from self._of_function(function)
            case type() if _ours(function.__module__) and function is not Kernel:
                yield from (v for v in vars(function).values() if isinstance(v, FunctionType))
            case _ if _ours(type(function).__module__):
                yield type(function)
                yield from _state(function)
            case _:
                told = repr(function)
                self._tell("" if " at 0x" in told else told)

    def _of_function(self, function: FunctionType) -> Iterator[Any]:
        self._tell(function.__name__)
        if not _ours(function.__module__):
            return
        self.modules.add(function.__module__)
        yield from _overloads().get(function, ())
        yield from (function.__code__, function.__defaults__)
        yield from (cell.cell_contents for cell in function.__closure__ or ())
        names = list(dict.fromkeys(_names(function.__code__)))
        for name in names:
            value = function.__globals__.get(name)
            if not isinstance(value, ModuleType):
                yield value
            elif _ours(value.__name__):
                yield from (vars(value).get(attribute) for attribute in names)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _state(value: Any) -> Iterator[Any]:
    if is_dataclass(value):
        yield from (getattr(value, field.name) for field in fields(value))
    else:
        own = getattr(value, "__dict__", {})
        yield from (own[name] for name in sorted(own) if name in ("calls", "function", "signature"))
        yield repr(value) if " at 0x" not in repr(value) else ""


def parts_of(kernel: Kernel) -> tuple[str, int]:
    """A digest of all that a kernel consists of, and the size of that bytecode."""
    found = Parts(kernel)
    return found.digest.hexdigest(), found.size


def runs_as(kernel: Kernel) -> str:
    """A digest of its machine code and of what its row computes; if equal, so is every result."""
    return f"{code_of(kernel)} {Parts(kernel, compiled=False).digest.hexdigest()}"
