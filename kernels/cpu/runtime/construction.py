"""Excludes by construction what no finite trial of compiled code could detect.

A share may compute, and read and write what its arguments point to. It has no memory of its own
that lasts from call to call, calls nothing but what is listed here and the one share that it
declares, and queries neither the time nor its environment. Its C function alone, which Numba
generates, may report to Python that it failed.
"""

import re

import llvmlite.binding as llvm

from kernels.cpu.runtime import elf

MATHEMATICS = (
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign",
    "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "fabs", "floor", "fma", "fmax",
    "fmin", "fmod", "hypot", "ldexp", "log", "log10", "log1p", "log2", "nearbyint", "nextafter",
    "pow", "rint", "round", "roundeven", "sin", "sincos", "sinh", "sqrt", "tan", "tanh", "tgamma",
    "trunc",
)  # fmt: skip

CALLED = "called_share"  # the name by which a share calls another, which is checked like it

# What any share may call: the C library's mathematics, memory copies, and helpers of Numba and
# of compilers, all stateless.
CALLS = {
    **{name + kind: "mathematics" for name in MATHEMATICS for kind in ("", "f")},
    **dict.fromkeys(("memcpy", "memmove", "memset", "memcmp"), "memory of its arguments or stack"),
    "numba_frexp": "Numba's frexp",
    "numba_frexpf": "Numba's frexp",
    "numba_ldexp": "Numba's ldexp",
    "numba_nextafter": "Numba's nextafter",
    "numba_nextafterf": "Numba's nextafter",
    "numba_attempt_nocopy_reshape": "strides of a reshaped array",
    "__extendhfsf2": "float16 to float32 where the CPU has no instruction",
    "__truncsfhf2": "float32 to float16 where the CPU has no instruction",
    "__truncdfhf2": "float64 to float16 where the CPU has no instruction",
    "__truncsfbf2": "float32 to bfloat16 where the CPU has no instruction",
    "__truncdfbf2": "float64 to bfloat16 where the CPU has no instruction",
}

# What the C function does once the share has failed: it tells Python, and computes nothing.
REPORTS = frozenset((
    "numba_gil_ensure", "numba_gil_release", "numba_unpickle", "numba_do_raise", "NRT_Free",
    "numba_runtime_build_excinfo_struct", "PyBytes_FromStringAndSize", "PyErr_Clear",
    "PyErr_Format", "PyErr_SetNone", "PyErr_SetObject", "PyErr_SetString",
    "PyErr_WriteUnraisable", "PyUnicode_FromString", "Py_DecRef", "_Py_Dealloc",
    "_Py_NoneStruct", "PyExc_RuntimeError", "PyExc_StopIteration", "PyExc_SystemError",
))  # fmt: skip

# LLVM's intrinsics, by families: arithmetic, and loads and stores through pointers.
_ARITHMETIC = (
    "abs", "bitreverse", "bswap", "canonicalize", "ceil", "copysign", "cos", "ctlz", "ctpop",
    "cttz", "exp", "exp10", "exp2", "fabs", "floor", "fma", "fmuladd", "fptosi", "fptoui",
    "fshl", "fshr", "is", "ldexp", "llrint", "lrint", "log", "log10", "log2", "maximum",
    "maxnum", "minimum", "minnum", "nearbyint", "pow", "powi", "rint", "round", "roundeven",
    "sadd", "sin", "smax", "smin", "smul", "sqrt", "sshl", "ssub", "trunc", "uadd", "umax",
    "umin", "umul", "ushl", "usub", "vector",
    r"get\.active\.lane\.mask", "stepvector", "vscale",  # of scalable vectors
)  # fmt: skip
_MEMORY = (
    "assume", "dbg", "experimental", "lifetime", "masked", "memcpy", "memmove", "memset",
    "prefetch",
)  # fmt: skip
_X86 = r"avx|avx2|avx512\w*|fma|ssse3|sse41|sse42|vcvtps2ph\w*|ldtilecfg|tile\w+|tdp\w+"
INTRINSICS = re.compile(
    rf"llvm\.(?:(?:{'|'.join(_ARITHMETIC + _MEMORY)})|x86\.(?:{_X86})|aarch64\.neon)(?:\.|$)"
)

_BODY = re.compile(r"^define [^\n]*?@(\"[^\"]+\"|[\w.$]+)\((.*?)^}", re.M | re.S)
_CONSTANT = re.compile(r"(?:private |internal |unnamed_addr |local_unnamed_addr )*constant ")
_NAME = re.compile(r'@("[^"]+"|[\w.$]+)')
_WORDS = {
    "runs inline assembly": re.compile(r"\basm\b"),
    "reads memory of the thread": re.compile(r"addrspace\([1-9]"),
    "reads an absolute address": re.compile(r"inttoptr \(?i\d+ -?\d+ to "),
}
# Empty assembly each of whose results is one of its operands: an order that LLVM must keep.
_NOTHING = re.compile(r'\basm "", "((?:=[rv],)+)((?:\d+,)*\d+)"')
_INDIRECT = re.compile(r"\b(?:call|invoke) [^@\n]*?%(?:\"[^\"]*\"|[\w.$-]+)\(")


def complaint_about(module: llvm.ModuleRef, calls: bool = False) -> str:
    """What in a share's optimised IR is not allowed, by name; "" if nothing is. The module's C
    function has the module's name; it `calls` another share, or does not."""
    for variable in module.global_variables:
        if complaint := _about_variable(variable):
            return complaint
    for function in module.functions:
        if function.is_declaration and not _may_call(function.name, calls):
            numba = function.name.startswith("NRT_")  # whose arrays lie in memory of their own
            return f"calls {function.name}{', for memory, which `scratch` is' if numba else ''}"
    text = str(module)
    if "\nmodule asm" in text:
        return "runs inline assembly"
    for name, body in _BODY.findall(_NOTHING.sub(_without_identity, text)):
        for complaint, pattern in _WORDS.items():
            if found := pattern.search(body):
                return f"{complaint}: {_line_of(body, found)}"
        if name != module.name:
            if found := _INDIRECT.search(body):
                return f"calls an address: {_line_of(body, found)}"
            if python := REPORTS & {word.strip('"') for word in _NAME.findall(body)}:
                return f"calls {min(python)}"
    return ""


def _without_identity(found: re.Match[str]) -> str:
    """Nothing, where result n of empty assembly is operand n; a result of its own would be what a
    register happened to hold."""
    results, operands = found[1].count("="), found[2].split(",")
    return "" if operands == [str(n) for n in range(results)] else found[0]


def _about_variable(variable: llvm.ValueRef) -> str:
    name = variable.name
    if variable.is_declaration:
        return "" if name in REPORTS else f"reads the global variable {name}"
    told = str(variable).partition(" = ")[2]
    if not _CONSTANT.match(told):
        return f"has the global variable {name}, which lasts from call to call"
    if found := _WORDS["reads an absolute address"].search(told):
        return f"reads an absolute address: {_line_of(told, found)}"
    return ""


def _may_call(name: str, calls: bool) -> bool:
    known = name in CALLS or name in REPORTS or (calls and name == CALLED)
    return known or bool(INTRINSICS.match(name))


def _line_of(text: str, found: re.Match[str]) -> str:
    begin = text.rfind("\n", 0, found.start()) + 1
    return " ".join(text[begin : found.end() + 40].splitlines()[0].split())


def complaint_about_object(code: bytes, calls: bool = False) -> str:
    """The same for object code, as far as its sections and symbols tell; nothing if it is no
    ELF."""
    if not code.startswith(elf.MAGIC):
        return ""
    sections = elf.sections_of(code)
    for section in sections:
        if section.flags & elf.ALLOC and section.flags & elf.WRITE and section.size:
            return f"has the memory {section.name}, which lasts from call to call"
    for symbol in elf.symbols_of(sections):
        if not symbol.section and symbol.name and not _may_call(symbol.name, calls):
            return f"calls {symbol.name}"
    return ""
