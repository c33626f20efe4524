"""What a certificate is bound to: the sources of a kernel, the tools, and the machine."""

import ast
import hashlib
import importlib.util
import inspect
import json
import marshal
import platform
import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba import config

import kernels
import reference
from kernels.cpu.isa import hwcap
from kernels.cpu.runtime.closures import modules_of, told_of
from reference import packages

ROOMS = ("reference", "kernels")
TOOLS = ("numba", "llvmlite", "numpy")
# Settings of Numba that do not change CPU code, though they may differ from run to run.
NO_CODE = re.compile(r"_|CACHE_|CHROME_|COLOR_|CUDA|DUMP_|HIGHLIGHT_|NUMBA_|THREADING_")
# An import in a formatted source: `from` which module, and which.
IMPORT = re.compile(r"^ *(?:from ([\w.]+) import (?:\(([^)]*)\)|(.*))|import (.*))", re.MULTILINE)


class EditedError(RuntimeError):
    """A source was edited after this process imported it."""


@cache
def _source(module: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.origin else None


@cache
def _imported(path: Path) -> bytes:
    """A source as this process imported it, or EditedError if its file has changed since."""
    source = path.read_bytes()
    for room in (reference, kernels):
        ours, stamp = path.is_relative_to(room.__path__[0]), room.STAMPS.get(str(path))
        if ours and stamp != path.stat().st_ctime_ns:
            raise EditedError(f"{path} was edited since this process began: start it anew")
    _demand_unchanged(path)
    if _is_stale(path, source):
        raise EditedError(f"{path} is not what its .pyc file was made of: remove that, start anew")
    return source


def _demand_unchanged(path: Path) -> None:
    """Raise EditedError for a package's file that was edited after its import began."""
    if packages.STAMPS.get(str(path), 0) not in (0, path.stat().st_ctime_ns):
        raise EditedError(f"{path} was edited since it was imported: start anew")


def _is_stale(path: Path, source: bytes) -> bool:
    """Whether Python has loaded stale bytecode: it compares the source's size and date in whole
    seconds, which an edit may leave unchanged."""
    bytecode = Path(importlib.util.cache_from_source(path))
    try:
        status = path.stat()
        if status.st_ctime_ns < bytecode.stat().st_mtime_ns:
            return False  # compiled after the last edit
        kept = bytecode.read_bytes()
        taken = struct.pack("<2L", int(status.st_mtime) & 0xFFFFFFFF, status.st_size)
        if not any(kept[4:8]) and kept[8:16] != taken:
            return False  # of another edit: Python has not loaded it
        imported = marshal.loads(kept[16:])
    except (OSError, ValueError, EOFError):
        return False
    return bool(imported != compile(source, str(path), "exec", dont_inherit=True))


def _quickly(source: str) -> Iterator[tuple[str, list[str]]]:
    """The imports of a source formatted as ours are, by pattern: parsing them would take a quarter
    of a warm start."""
    for origin, *names in IMPORT.findall(source):
        named = (words.split() for words in "".join(names).split(","))
        yield origin, [words[0] for words in named if words]


def _by_parsing(source: str) -> Iterator[tuple[str, list[str]]]:
    """The imports of any source, by parsing; relative ones begin with dots."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield "", [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield origin, [alias.name for alias in node.names]


@cache
def _imports(module: str) -> frozenset[str]:
    """The modules of our rooms that this module's source imports, and those of its own package if
    that provides kernels or ops."""
    path = _source(module)
    if path is None or path.suffix != ".py":
        return frozenset()
    source, found = _imported(path), set[str]()
    top = module.partition(".")[0]
    beside = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for origin, names in (_quickly if top in ROOMS else _by_parsing)(source.decode()):
        base = importlib.util.resolve_name(origin, beside) if origin[:1] == "." else origin
        found |= {base, *(f"{base}.{name}" for name in names)} if base else {*names}
    followed = {*ROOMS, top} if top in packages.PACKAGES else {*ROOMS}
    return frozenset(name for name in found if name.split(".")[0] in followed and _source(name))


@cache
def closure(module: str) -> tuple[str, ...]:
    """The module and every module of our rooms that it imports, directly or not, with their
    packages, sorted."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            above = name.rpartition(".")[0]  # their __init__.py runs first
            waiting += [*_imports(name), *([above] if above and _source(above) else [])]
    return tuple(sorted(seen))


@cache
def fingerprint(module: str, *extra: str) -> str:
    """sha256 over the sources of the module's closure and any further words; for a package that
    provides kernels or ops over all of its files, too."""
    top = module.partition(".")[0]
    whole = (digest_of_package(top),) if top in packages.PACKAGES else ()
    return digest_of(*closure(module), extra=(*whole, *extra))


@cache
def digest_of_package(module: str) -> str:
    """sha256 over the files of a package that provides kernels or ops, and over its version and
    those of its requirements."""
    package, digest = packages.PACKAGES[module], hashlib.sha256()
    digest.update(repr((package.name, package.version, package.requires)).encode())
    for path in packages.files_of(module):
        _demand_unchanged(path)
        digest.update(f"\0{path.name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def fingerprint_of_share(function: Callable[..., None], *extra: str) -> str:
    """sha256 over all that a share's function is made of, including closure variables from modules
    that its own does not import. A function of a program or a notebook has no module: its code in
    memory is hashed."""
    module = function.__module__
    if module != "__main__" and _source(module):
        beside = sorted(modules_of(function) - {*closure(module)})
        known = (name for name in beside if name.partition(".")[0] in {*ROOMS, *packages.PACKAGES})
        return fingerprint(module, *map(fingerprint, known), *extra)
    told, modules = told_of(function, ROOMS)
    return digest_of(*sorted({*chain(*map(closure, modules))}), extra=(told, *extra))


def fingerprint_of(function: Callable[..., Any]) -> str:
    """sha256 over the sources of a function's module's closure, its name, and the plain values and
    functions that it closes over."""
    given = inspect.getclosurevars(function).nonlocals
    values = repr({n: fingerprint_of(v) if callable(v) else v for n, v in given.items()})
    assert " at 0x" not in values, f"{values}: an address is another in every process"
    return fingerprint(function.__module__, function.__qualname__, values)


@cache
def digest_of(*modules: str, extra: tuple[str, ...] = ()) -> str:
    """sha256 over the sources of these modules alone and any further words."""
    digest = hashlib.sha256()
    for name in modules:
        path = _source(name)
        assert path is not None
        digest.update(f"{name}\0".encode() + _imported(path))
    for word in extra:
        digest.update(b"\0" + word.encode())
    return digest.hexdigest()


def tools() -> dict[str, str]:
    """Versions, and the settings of Numba that may change machine code."""
    return _versions() | {name: str(getattr(config, name)) for name in _settings()}


@cache
def _settings() -> list[str]:
    """Names of those settings."""
    return [name for name in dir(config) if name.isupper() and not NO_CODE.match(name)]


@cache
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "libc": "-".join(platform.libc_ver())}
    for tool in TOOLS:
        try:
            found[tool] = version(tool)
        except PackageNotFoundError:
            continue
    return found


def compiler() -> str:
    """Everything but sources that CPU machine code depends on."""
    return json.dumps([tools(), machine()])


def tell_numba() -> None:
    """Have Numba compile for the features that the system reports for an AArch64 CPU, unless they
    are set."""
    if platform.machine() == "aarch64" and config.CPU_FEATURES is None:
        has = dict(llvm.get_host_cpu_features()) | hwcap.probed()
        config.CPU_FEATURES = ",".join(f"{'-+'[on]}{name}" for name, on in sorted(has.items()))


tell_numba()  # before it compiles anything


@cache
def cpu_features() -> frozenset[str]:
    """LLVM's names of the features that code may use, e.g. avx512vnni: this CPU's, or
    NUMBA_CPU_FEATURES."""
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
