"""Compiled functions that close over other compiled functions, with names that tell what they close
over, the same in every process."""

import hashlib
from collections.abc import Callable, Collection, Iterator
from functools import cache, partial
from inspect import getclosurevars
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba import njit

# For functions called by compiled code only: no wrapper for Python, which would take a fifth of
# the time of compiling; Python must not call it.
inner = partial(njit, no_cpython_wrapper=True, no_cfunc_wrapper=True)
# The same of what LLVM puts where it is called: compiled once, where inline="always" has Numba read
# it anew at every place.
inlined = partial(inner, forceinline=True)
PLAIN = int, float, complex, str, tuple, np.generic, np.ndarray


def _python(value: Any) -> FunctionType | None:
    """The Python function of a compiled function or an intrinsic, or itself."""
    found = getattr(value, "py_func", getattr(value, "_defn", value))
    return found if isinstance(found, FunctionType) else None


@cache
def identity(function: FunctionType) -> str:
    """The function's qualified name and what it closes over, the same in every process."""
    cells = [f"{name} = {_described(v)}" for name, v in getclosurevars(function).nonlocals.items()]
    if not cells:
        return function.__qualname__
    digest = hashlib.sha256("\n".join(cells).encode()).hexdigest()
    return f"{function.__qualname__}[{digest[:16]}]"


def _described(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_described, value))})"
    function = _python(value)
    if function:
        line = function.__code__.co_firstlineno
        return f"{function.__module__}:{line} {identity(function)}"
    told = repr(value)
    if " at 0x" in told or "..." in told:
        raise TypeError(f"a compiled function closes over {told}: what is it in another process?")
    return told


def modules_of(function: Callable[..., Any]) -> set[str]:
    """The modules of a function and of all that it closes over, transitively."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting: list[Any] = [function]
    while waiting:
        value = waiting.pop()
        if isinstance(value, tuple):
            waiting += value
        elif (own := _python(value)) and id(own) not in seen:
            seen.add(id(own))
            found.add(own.__module__)
            waiting += getclosurevars(own).nonlocals.values()
    return found


def told_of(function: Callable[..., None], rooms: Collection[str]) -> tuple[str, tuple[str, ...]]:
    """A description of what a function computes, by its code and the names in it; and the modules
    of these rooms, with sources of their own, from which it takes functions."""
    words: list[str] = []
    modules: set[str] = set()
    seen: set[int] = set()
    waiting: list[Any] = [function]
    while waiting:
        value = waiting.pop()
        found = _python(value)
        if id(found or value) in seen:
            continue
        seen.add(id(found or value))
        if found is None:
            words.append(_value(value))
        elif found.__module__.partition(".")[0] in rooms:
            modules.add(found.__module__)
            words.append(f"{found.__module__} {identity(found)}")
        else:
            words += _of_code(found.__code__)
            waiting += _named(found)
        waiting += getclosurevars(found).nonlocals.values() if found else ()
    return "\n".join(words), tuple(sorted(modules))


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The function's code object, and those of nested functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _of_code(code: CodeType) -> Iterator[str]:
    for each in _codes(code):
        constants = [repr(c) for c in each.co_consts if not isinstance(c, CodeType)]
        yield f"{each.co_name} {each.co_code.hex()} {each.co_names} {each.co_varnames} {constants}"


def _named(function: FunctionType) -> Iterator[Any]:
    """Globals that a function uses, and of modules among those only compiled functions and plain
    values."""
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    known = [function.__globals__[name] for name in sorted(names) if name in function.__globals__]
    yield from known
    for module in (value for value in known if isinstance(value, ModuleType)):
        found = (getattr(module, name, None) for name in sorted(names))
        yield from (v for v in found if isinstance(v, PLAIN) or (_python(v) or v) is not v)


def _value(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return _described(value)
