"""A share's machine code: compiled by Numba and LLVM, stored in the cache folder, loaded without
pickles.

Numba's own cache is a pickle, keyed by one file's date. Here a share is an object file with one C
function in it, called `share`: everything unreachable from it is dropped, and with it every name
that differs between processes, so that equal sources give equal bytes whoever compiles them. A line
of JSON before the object code names its key; certificates hold its digest.
"""

import gc
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba import _dynfunc, types
from numba.core.callconv import CPUCallConv
from numba.core.ccallback import CFunc
from numba.core.codegen import CPUCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.cpu import CPUContext
from numba.core.errors import NumbaError
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

from kernels.cache import keep, read, ready, say
from kernels.cpu.runtime.construction import CALLED, complaint_about, complaint_about_object
from kernels.cpu.runtime.quick_numba import be_quick

C_SIGNATURE = types.void(types.uint64, types.int64, types.int64)
# Without Numba's runtime arrays are not counted: all are arguments' or on the stack.
OPTIONS = {"nopython": True, "error_model": "numpy", "nogil": True, "_nrt": False}
# How Numba says, without it, that an array cannot be made.
NEW_ARRAY = "NRT required", "Only accept returning of array passed into the function"
MEMORY = (
    "makes an array, as ravel does and reshape does not: a kernel's memory is its arguments,"
    " `scratch` among them, and `stack`"
)
ENTRY = "share"  # the name of the C function
ROOM = 2**16  # Python's words: with those around them a little more than half a megabyte
WRAPPERS = "_ZN7cpython", "cfunc."  # prefixes of what Python and C call


@dataclass(frozen=True)
class Code:
    """Object code, the complaint about its construction ("" if there is none), and whether it was
    found on disk."""

    object: bytes
    construction: str
    kept: bool = False

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.construction.encode() + b"\0" + self.object).hexdigest()


def code_for(name: str, key: str, function: Callable[..., None], calls: bool = False) -> Code:
    """The code stored under this key by any process, or else compiled now; it may call another
    share, if it `calls` one."""
    path = _path(key)
    kept = read(path)
    if kept is not None:
        if code := _parsed(kept, key, calls):
            return code
        say(f"{path} in the cache folder is damaged or another's: {name} is compiled anew")
    ready()  # reports at once if nothing can be stored
    code = compiled(function, calls)
    keep(path, _header(name, key, code) + code.object)
    return code


def is_kept(key: str) -> bool:
    """Whether code is stored under this key."""
    return read(_path(key)) is not None


def _path(key: str) -> str:
    return f"compiled/{key[:32]}.share"


def _header(name: str, key: str, code: Code) -> bytes:
    words = {"share": name, "key": key, "construction": code.construction, "digest": code.digest}
    return json.dumps(words).encode() + b"\n"


def _parsed(kept: bytes, key: str, calls: bool) -> Code | None:
    """Code that is complete, was stored under this key, and has the digest in its header."""
    header, _, machine_code = kept.partition(b"\n")
    try:
        words = json.loads(header)
        code = Code(machine_code, words["construction"], kept=True)
        if (words["key"], words["digest"]) != (key, code.digest):
            return None
        sound = code.construction or not complaint_about_object(machine_code, calls)
        return code if sound else None
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def compiled(function: Callable[..., None], calls: bool = False) -> Code:
    """Compile now."""
    module = optimised(function)
    complaint = complaint_about(module, calls)
    number = 0
    for value in (*module.functions, *module.global_variables):
        if value.linkage == llvm.Linkage.internal:
            value.name, number = f"own{number}", number + 1
    machine_code = _target_machine().emit_object(module)
    return Code(machine_code, complaint or complaint_about_object(machine_code, calls))


# Python keeps frames in pieces of 16 KB; where a loop's calls cross the end of one, each maps a new
# piece and unmaps it, and Numba's loops spent a sixth of a cold start on that. A frame that asks
# for more than half of a large piece, as this function's does, leaves its callees the other half.
compiled.__code__ = compiled.__code__.replace(co_stacksize=ROOM)


def assembly(function: Callable[..., None]) -> str:
    """Compile now, to assembly text."""
    return str(_target_machine().emit_assembly(optimised(function)))


def optimised(function: Callable[..., None]) -> llvm.ModuleRef:
    """LLVM's final IR of the share: its C function and everything reachable from it."""
    callback: Any = CFunc(function, (C_SIGNATURE.args, C_SIGNATURE.return_type), {}, OPTIONS)
    with global_compiler_lock, _garbage_kept():
        try:
            result = callback._compile_uncached()
        except NumbaError as error:
            if any(words in str(error) for words in NEW_ARRAY):
                raise TypeError(f"{function.__qualname__} {MEMORY}") from error
            raise
        library = result.library
        library._finalize_final_module = lambda: None  # or Numba's engine would load it
        library.finalize()
    module = library._final_module
    entry = module.get_function(result.fndesc.llvm_cfunc_wrapper_name)
    defined = [v for v in (*module.functions, *module.global_variables) if not v.is_declaration]
    for value in defined:
        if value.name != entry.name:
            value.linkage = "internal"
    passes = llvm.create_new_module_pass_manager()
    passes.add_ipsccp_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    tuning = llvm.create_pipeline_tuning_options(0)
    passes.run(module, llvm.create_pass_builder(_target_machine(), tuning))
    entry.name = module.name = ENTRY
    return module


def _target_machine() -> llvm.TargetMachine:
    return cpu_target.target_context.codegen()._tm


@contextmanager
def _garbage_kept() -> Iterator[None]:
    """Disables garbage collection: Numba creates objects by the million, and collecting takes an
    eighth of the time of compiling."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _leave_parts_as_they_are() -> None:
    """Numba optimises every function that another calls, makes machine code of it and loads that;
    then it does the same with the caller, which has all of it inlined. A sixth of the time of
    compiling goes there. What is called by compiled code alone is left as it is from now on, for
    the whole to be optimised; whoever compiles it first, since equal sources are to give equal
    bytes in every process."""
    library, context = CPUCodeLibrary, CPUContext
    optimise, finalise = library._optimize_final_module, library._finalize_final_module
    optimise_functions, load = library._optimize_functions, context.get_executable

    def functions(self: Any, module: Any) -> None:
        if _is_called_from_outside(module):
            optimise_functions(self, module)
        else:
            module.data_layout = self._codegen._data_layout

    def whole(self: Any) -> None:
        if _is_called_from_outside(self._final_module):
            optimise(self)

    def finalised(self: Any) -> None:
        if _is_called_from_outside(self._final_module):
            finalise(self)
        self._finalized = True

    def executable(self: Any, own: Any, described: Any, env: Any) -> Any:
        if _is_called_from_outside(own._final_module):
            return load(self, own, described, env)
        name = described.qualname.rpartition(".")[2]
        return _dynfunc.make_function(described.lookup_module(), name, "", 0, env, (own,))

    library._optimize_functions, context.get_executable = functions, executable
    library._optimize_final_module, library._finalize_final_module = whole, finalised


def _is_called_from_outside(module: llvm.ModuleRef) -> bool:
    """Whether one of its functions is a wrapper by which Numba exposes another to Python or C."""
    return any(f.name.startswith(WRAPPERS) and not f.is_declaration for f in module.functions)


_leave_parts_as_they_are()


be_quick()


def _tell_no_home() -> None:
    """Numba embeds the source's path in code that raises, which would differ between two
    environments with equal sources: make the path relative to Python's module folders."""
    told = CPUCallConv.build_excinfo_struct

    def told_apart(self: Any, *raised: Any) -> tuple[Any, Any, Any]:
        error, arguments, place = told(self, *raised)
        if place:
            function, file, line = place
            place = function, _without_home(file), line
        return error, arguments, place

    CPUCallConv.build_excinfo_struct = told_apart


def _without_home(file: str) -> str:
    """The path of a source relative to the innermost of Python's module folders."""
    homes = [Path(home or ".").absolute() for home in sys.path]
    found = [Path(file).relative_to(home) for home in homes if Path(file).is_relative_to(home)]
    return min((path.as_posix() for path in found), key=len, default=file)


_tell_no_home()


class Loaded:
    """Object code in memory, callable at its address as long as this lives; the address of the
    share that it calls, if any, is given, too."""

    def __init__(self, code: Code, called: int = 0) -> None:
        machine = _target().create_target_machine()
        module = llvm.parse_assembly(f"declare void @{CALLED}(i64, i64, i64)")
        self._engine = llvm.create_mcjit_compiler(module, machine)
        self._engine.add_global_mapping(module.get_function(CALLED), called)
        self._object = llvm.ObjectFileRef.from_data(code.object)
        self._engine.add_object_file(self._object)
        self.address = int(self._engine.get_function_address(ENTRY))


@cache
def _target() -> Any:
    """Loads the helpers of Numba that kernels may call."""
    rtsys.initialize(cpu_target.target_context)
    return llvm.Target.from_triple(llvm.get_process_triple())
