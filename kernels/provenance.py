"""What a certificate binds: the sources a thing is made of, the tools, and the machine."""

import ast
import hashlib
import importlib.util
import inspect
import os
import platform
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba import config

ROOMS = ("reference", "kernels")
TOOLS = ("numba", "llvmlite", "numpy")
SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "USING_SVML")


def cache_folder() -> Path:
    """Where certificates and compiled kernels are kept; ASSAY_CACHE overrides it."""
    if chosen := os.environ.get("ASSAY_CACHE"):
        return Path(chosen)
    import platformdirs  # a bare machine whose GPU is checked may have none

    return Path(platformdirs.user_cache_dir("assay", appauthor=False))


@cache
def _source(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.origin else None


@cache
def _imports(module: str) -> frozenset[str]:
    """The modules of our rooms that this module's source imports."""
    path = _source(module)
    found: set[str] = set()
    if path is None:
        return frozenset()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(name for name in found if name.split(".")[0] in ROOMS and _source(name))


@cache
def closure(module: str) -> tuple[str, ...]:
    """The module and every module of our rooms it imports, directly or not, sorted."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += _imports(name)
    return tuple(sorted(seen))


@cache
def fingerprint(module: str, *extra: str) -> str:
    """sha256 over the sources of the module's closure, and any further words."""
    return digest_of(*closure(module), extra=extra)


def fingerprint_of(function: Callable[..., Any]) -> str:
    """sha256 over the sources of a function's module's closure, its name, and the plain values that
    it was made with."""
    values = inspect.getclosurevars(function).nonlocals
    return fingerprint(function.__module__, function.__qualname__, repr(values))


@cache
def digest_of(*modules: str, extra: tuple[str, ...] = ()) -> str:
    """sha256 over the sources of these modules alone, and any further words."""
    digest = hashlib.sha256()
    for name in modules:
        path = _source(name)
        assert path is not None
        digest.update(f"{name}\0".encode() + path.read_bytes())
    for word in extra:
        digest.update(b"\0" + word.encode())
    return digest.hexdigest()


@cache
def tools() -> dict[str, str]:
    """Versions, and the settings of Numba that change machine code."""
    found = {"python": platform.python_version(), "libc": "-".join(platform.libc_ver())}
    for tool in TOOLS:
        try:
            found[tool] = version(tool)
        except PackageNotFoundError:
            continue
    return found | {name: str(getattr(config, name, None)) for name in SETTINGS}


@cache
def cpu_features() -> frozenset[str]:
    """LLVM's names of what code may use, e.g. avx512vnni: this CPU's, or NUMBA_CPU_FEATURES."""
    if config.CPU_FEATURES is not None:
        words = config.CPU_FEATURES.split(",")
        return frozenset(word[1:] for word in words if word.startswith("+"))
    return frozenset(name for name, has in llvm.get_host_cpu_features().items() if has)


@cache
def machine() -> str:
    """This CPU: its architecture, LLVM's name, and a digest of its features."""
    features = hashlib.sha256(",".join(sorted(cpu_features())).encode()).hexdigest()[:12]
    name = config.CPU_NAME or llvm.get_host_cpu_name()
    return f"{platform.machine()}/{name}/{features}"
