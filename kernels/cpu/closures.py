"""Compiled functions that close over other compiled functions, kept on disk.

Numba tells two closures of one function apart by a number that starts anew in every process, and
joins what has equal names when it loads from disk: closures that different processes compiled would
be taken for one another, also those inside an overload, which nobody sees. Here numbers start where
no other process's do. It also keys what it keeps by the pickled closure, which for a compiled
function holds a random number, so that another process would find nothing. Here a closure's name
says what it closes over, and the name is the key.
"""

import gc
import hashlib
import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from inspect import getclosurevars
from types import FunctionType
from typing import Any

from numba import njit
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc

# For what compiled functions alone call: it has no wrapper for Python, which would take a fifth of
# the time of compiling, and crashes when Python calls it.
inner = partial(njit, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _number_anew() -> None:
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(62))


_number_anew()
os.register_at_fork(after_in_child=_number_anew)


def _python(value: Any) -> FunctionType | None:
    """The Python function that a compiled function or an intrinsic was made of, or that it is."""
    found = getattr(value, "py_func", getattr(value, "_defn", value))
    return found if isinstance(found, FunctionType) else None


@cache
def identity(function: FunctionType) -> str:
    """The function's qualified name and what it closes over, the same in every process."""
    cells = [f"{name} = {_told(v)}" for name, v in getclosurevars(function).nonlocals.items()]
    if not cells:
        return function.__qualname__
    digest = hashlib.sha256("\n".join(cells).encode()).hexdigest()
    return f"{function.__qualname__}[{digest[:16]}]"


def _told(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_told, value))})"
    function = _python(value)
    if function:
        line = function.__code__.co_firstlineno
        return f"{function.__module__}:{line} {identity(function)}"
    told = repr(value)
    if " at 0x" in told or "..." in told:
        raise TypeError(f"a compiled function closes over {told}: what is it in another process?")
    return told


def compile_c(function: Any, signature: Any, options: dict[str, Any]) -> CFunc:
    """A C function of this Numba signature, compiled now or before, by whatever process."""
    function.__qualname__ = identity(function)
    compiled = _Compiled(function, (signature.args, signature.return_type), {}, options)
    compiled.enable_caching()
    with _garbage_kept():
        compiled.compile()
    return compiled


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Numba makes objects by the million, and looking for garbage among them takes an eighth of
    the time of compiling."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


class _Cache(FunctionCache):
    def _index_key(self, signature: Any, codegen: Any) -> Any:
        return signature, codegen.magic_tuple()  # the file is the function's, by its name


class _Compiled(CFunc):
    def enable_caching(self) -> None:
        self._cache = _Cache(self._pyfunc)  # type: ignore[attr-defined]
