"""Skeletons of candidate files: they compile, compute nothing yet, and mark where the work goes."""

import inspect
import json
from collections.abc import Callable, Iterator

from kernels.cuda.runtime.launch import C_TYPES
from kernels.foreign.candidate import size_names
from reference.op import Argument, Op

SUFFIXES = {"c": ".c", "numba": ".py", "triton": ".py", "cuda": ".cu", "python": ".py",
            "cubin": ".toml"}  # fmt: skip


def template(op: Op, kind: str, format: str | None = None) -> str:
    """The text of a skeleton for an op in "c", "numba", "triton", "cuda" or "python"; for "cubin",
    of its manifest."""
    if kind not in TEMPLATES:
        raise ValueError(f"--for is one of {', '.join(TEMPLATES)}, got {kind!r}")
    wanted = format or (op.formats[0] if op.formats else "")
    mark, text = TEMPLATES[kind]
    key = "" if kind == "cubin" else f"{mark} assay: "
    return "\n".join([*_about(op, wanted, mark, key), text(op)])


def _about(op: Op, format: str, mark: str, key: str) -> Iterator[str]:
    """The header comment: manifest, formula and the meaning of each argument."""
    yield f'{key}op = "{op.name}"'
    if format:
        yield f'{key}format = "{format}"'
    yield mark
    text = inspect.cleandoc(op.reference.__doc__ or op.name).splitlines()
    yield from (f"{mark} {line}".rstrip() for line in text)
    yield mark
    for argument in op.inputs:
        yield f"{mark} {argument}"
    for argument in op.outputs:
        yield f"{mark} {argument}, to be written"
    if format:
        yield f"{mark} A weight is {format}'s bytes, row by row, as a GGUF file has them."


def _c_parameters(op: Op, size: str) -> str:
    inputs = [_c_parameter(a, "const ") for a in op.inputs]
    outputs = [_c_parameter(o, "") for o in op.outputs]
    return ", ".join([*inputs, *outputs, *(f"{size} {name}" for name in _sizes(op))])


def _c_parameter(argument: Argument, access: str) -> str:
    kind = C_TYPES[argument.dtype]
    return f"{access}{kind} *{argument.name}" if argument.axes else f"{kind} {argument.name}"


def _c(op: Op) -> str:
    return (
        f"#include <math.h>\n#include <stdint.h>\n\n"
        f"void {op.name}({_c_parameters(op, 'int64_t')}) {{\n"
        f"  // FILL IN: write every element of {_outputs(op)}.\n}}\n"
    )


def _cuda(op: Op) -> str:
    first = _first(op)
    return (
        f'// assay: blocks = ["{first}"]\n// assay: threads = 128\n'
        '#include "portable.cuh"\n\n'
        f'extern "C" __global__ void {op.name}({_c_parameters(op, "int")}) {{\n'
        f"  // FILL IN: write every element of {_outputs(op)}; a block for each of {first}.\n}}\n"
    )


def _python_parameters(op: Op) -> str:
    return ", ".join(argument.name for argument in (*op.inputs, *op.outputs))


def _numba(op: Op) -> str:
    return (
        f"import numpy as np\nfrom numba import njit\n\n\n@njit\n"
        f"def {op.name}({_python_parameters(op)}):\n"
        f"    # FILL IN: write every element of {_outputs(op)}.\n    pass\n"
    )


def _python(op: Op) -> str:
    return (
        f"import numpy as np\n\n\n"
        f"def {op.name}({_python_parameters(op)}):\n"
        f"    # FILL IN: write every element of {_outputs(op)}, or leave these parameters out and\n"
        "    # return them. With `import torch` in this file, arrays are tensors.\n    pass\n"
    )


def _triton(op: Op) -> str:
    names = [argument.name for argument in (*op.inputs, *op.outputs)] + _sizes(op)
    return (
        f"import triton\nimport triton.language as tl\n\n\n@triton.jit\n"
        f"def kernel({', '.join(names)}, BLOCK: tl.constexpr):\n"
        f"    # FILL IN: write every element of {_outputs(op)}; a program for each of {_first(op)}."
        f"\n    pass\n\n\ndef {op.name}({', '.join(names)}):\n"
        f"    kernel[({_first(op)},)]({', '.join(names)}, BLOCK=128)\n"
    )


def _cubin(op: Op) -> str:
    names = [argument.name for argument in (*op.inputs, *op.outputs)] + _sizes(op)
    return (
        "\n# FILL IN: how the kernel is called and launched, in the op's sizes.\n"
        f'name = "{op.name}"  # its symbol: the mangled one, but for extern "C"\n'
        '# Its parameters in order; numbers and expressions will do, as in "tokens * 2:i32".\n'
        f"arguments = {json.dumps(names)}\n"
        f'blocks = ["{_first(op)}"]  # in x, y and z\nthreads = [128]  # of a block\n'
        f"shared = 0  # bytes, beside what it declares\n"
    )


def _sizes(op: Op) -> list[str]:
    axes = (axis for a in (*op.inputs, *op.outputs) for axis in a.axes if axis.isidentifier())
    return [size_names(op, axis)[0] for axis in dict.fromkeys(axes)]


def _first(op: Op) -> str:
    """The size of the output's first axis."""
    named = [axis for axis in op.outputs[0].axes if axis.isidentifier()]
    return size_names(op, named[0])[0] if named else "1"


def _outputs(op: Op) -> str:
    return " and ".join(o.name for o in op.outputs)


TEMPLATES: dict[str, tuple[str, Callable[[Op], str]]] = {  # by the mark of a comment
    "c": ("//", _c), "numba": ("#", _numba), "triton": ("#", _triton), "cuda": ("//", _cuda),
    "python": ("#", _python), "cubin": ("#", _cubin),
}  # fmt: skip
