"""A definition as an op, and a solution as a candidate for the judge.

A definition's reference, in PyTorch, is the formula; its bound is not derived. Kernels of an op
that Assay has are judged against that op. Of other definitions only the computation is known: the
error allowed is flashinfer-bench's own tolerance, 0.01 absolute and relative, and reports say so. A
solution's sources are written to a folder, with a file whose function takes the definition's inputs
and passes them on as tensors.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flashinfer_bench.bench.utils import gen_inputs, load_safetensors, normalize_outputs
from flashinfer_bench.data import Definition, Solution, TensorSpec, Workload
from safetensors import SafetensorError

from bench.exchange.dataset import ExchangeError
from kernels.foreign.candidate import Candidate
from reference.op import DTYPES, Arguments, Array, Case, Cost, Op, Shape

TOLERANCE = 1e-2  # absolute and relative: rtol and atol of flashinfer-bench's BenchmarkConfig
NOT_DERIVED = (
    f"the bound is flashinfer-bench's tolerance, {TOLERANCE:g} + {TOLERANCE:g} |out|: not derived"
)
# Dtypes of arrays that NumPy can hold: narrow floats are held as their bits.
HELD = {
    "float32": "f32", "float16": "u16", "bfloat16": "u16", "float8_e4m3fn": "u8",
    "float8_e5m2": "u8", "int64": "i64", "int32": "i32", "int16": "u16", "int8": "i8", "bool": "u8",
}  # fmt: skip
USUAL = (1, 2, 5, 16, 33)  # sizes of an axis besides those of workloads
HERE = ("python", "triton")  # languages whose solutions are called from Python
TORCH = {"f32": "float32", "i64": "int64", "i32": "int32", "u8": "uint8"}


def op_of(definition: Definition, workloads: Sequence[Workload], root: Path) -> Op:
    """The op: at the workloads' sizes, and, where inputs may have any values, at others too."""
    for name, tensor in (*definition.inputs.items(), *definition.outputs.items()):
        if (dtype := tensor.dtype.value) not in HELD:
            raise ExchangeError(f"{definition.name}, {name}: {dtype} is not judged here")
    run = _run_of(definition)
    fixed = definition.const_axes
    axes = {
        axis: (fixed[axis],) if axis in fixed
        else tuple(sorted({w.axes[axis] for w in workloads if axis in w.axes} | {*USUAL}))
        for axis in definition.axes
    }  # fmt: skip

    def fit(shape: Shape, _: str | None) -> Shape:
        sizes = {**shape, **fixed}
        return sizes if _anywhere(definition) else _nearest(definition, workloads, sizes)

    def make(case: Case) -> Arguments:
        workload = _workload(definition, workloads, case.shape)
        try:
            tensors = load_safetensors(definition, workload, root)
        except (OSError, ValueError, SafetensorError) as error:
            raise ExchangeError(f"{definition.name}: {error}") from None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(case.rng().integers(2**31)))
            made = gen_inputs(definition, workload, "cpu", tensors)
        return {
            name: _held(value, tensor.dtype.value)
            for (name, tensor), value in zip(definition.inputs.items(), made, strict=True)
        }

    def cost(shape: Shape, _: str | None) -> Cost:
        """Each array moves once; the arithmetic is unknown."""
        tensors = [*definition.inputs.values(), *definition.outputs.values()]
        moved = [
            math.prod(shape[axis] for axis in t.shape)
            * np.dtype(DTYPES[HELD[t.dtype.value]]).itemsize
            for t in tensors
            if t.shape
        ]
        return Cost(sum(moved), 0)

    return Op(
        name=definition.name,
        reference=lambda **inputs: _computed(definition, run, inputs),
        signature=signature_of(definition),
        axes=axes,
        make=make,
        bound=lambda inputs, expected: _tolerated(definition, expected),
        cost=cost,
        values=("normal",),
        fit=fit,
        corners=tuple({a: w.axes[a] for a in w.axes if a in axes} for w in workloads),
        varying=(),
    )


def signature_of(definition: Definition) -> str:
    """Its inputs and outputs as an op's signature; floating-point outputs become float32."""
    inputs = ", ".join(_argument(n, t, HELD[t.dtype.value]) for n, t in definition.inputs.items())
    outputs = ", ".join(
        _argument(n, t, given_as(t.dtype.value), output=True) for n, t in definition.outputs.items()
    )
    return f"{inputs} -> {outputs}"


def given_as(dtype: str) -> str:
    """The dtype as which outputs are judged."""
    return "f32" if "float" in dtype else {"int64": "i64", "bool": "u8"}.get(dtype, "i32")


def _argument(name: str, tensor: TensorSpec, held: str, output: bool = False) -> str:
    if tensor.shape:
        return f"{name}: {held}[{' '.join(tensor.shape)}]"
    if output:
        return f"{name}: {held}[1]"
    return f"{name}: {'f64' if 'float' in tensor.dtype else 'i64'}"


def _anywhere(definition: Definition) -> bool:
    """Whether any sizes and values are legal: integers may be indices or lengths."""
    floats = all("float" in tensor.dtype for tensor in definition.inputs.values() if tensor.shape)
    return floats and not definition.constraints


def _nearest(definition: Definition, workloads: Sequence[Workload], sizes: Shape) -> Shape:
    """The workload sizes that differ least, in octaves."""
    if not workloads:
        raise ExchangeError(f"{definition.name} has constraints or integers, and no workload")

    def far(workload: Workload) -> float:
        pairs = ((sizes[a], n) for a, n in workload.axes.items() if a in sizes)
        return sum(abs(math.log2((mine + 1) / (theirs + 1))) for mine, theirs in pairs)

    return {**sizes, **min(workloads, key=far).axes}


def _workload(definition: Definition, workloads: Sequence[Workload], shape: Shape) -> Workload:
    """The workload of these sizes, or else random inputs with the scalars of the first."""
    for workload in workloads:
        if workload.axes.items() <= shape.items():
            return workload
    first = workloads[0].inputs if workloads else {}
    scalars = {name: said for name, said in first.items() if said.type == "scalar"}
    axes = {axis: shape[axis] for axis in definition.var_axes}
    return Workload(axes=axes, inputs=scalars, uuid="random")


def _held(tensor: Any, dtype: str) -> Any:
    """A PyTorch tensor as NumPy holds it; a scalar becomes Python's."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    wanted = DTYPES[HELD[dtype]]
    if (
        "float" in dtype and dtype != "float32"
    ):  # NumPy has no such dtype, or holds its bits all the same
        tensor = tensor.view(torch.int16 if np.dtype(wanted).itemsize == 2 else torch.uint8)
    array: Array = tensor.numpy()
    return array.astype(wanted) if dtype == "bool" else array.view(wanted)


def tensor_of(array: Any, dtype: str) -> Any:
    """The PyTorch tensor of an array; a scalar becomes Python's."""
    if not isinstance(array, np.ndarray):
        return array
    signed = array.view(np.int16) if array.dtype == np.uint16 else array
    return torch.from_numpy(np.ascontiguousarray(signed)).view(getattr(torch, dtype))


def _run_of(definition: Definition) -> Any:
    """The function of its reference, which runs in this process: read it before."""
    names: dict[str, Any] = {"__name__": definition.name}
    try:
        exec(compile(definition.reference, f"<{definition.name}>", "exec"), names)
    except Exception as error:
        raise ExchangeError(f"the reference of {definition.name}: {error}") from None
    return names["run"]


def _computed(definition: Definition, run: Any, inputs: Mapping[str, Any]) -> Any:
    """The reference's outputs, floats as float64."""
    given = [tensor_of(inputs[n], tensor.dtype.value) for n, tensor in definition.inputs.items()]
    names, dtypes = [*definition.outputs], definition.torch_output_dtypes
    try:
        with torch.no_grad():
            found = normalize_outputs(
                run(*given), device=torch.device("cpu"), output_names=names,
                output_dtypes=dict(zip(names, dtypes, strict=True)),
            )  # fmt: skip
        outputs = [found[name] for name in names]
    except Exception as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ExchangeError(f"the reference of {definition.name}: {why}") from None
    arrays = [
        (value.double() if value.is_floating_point() else value).numpy().reshape(value.shape or 1)
        for value in outputs
    ]
    return tuple(arrays) if len(arrays) > 1 else arrays[0]


def _tolerated(definition: Definition, expected: Mapping[str, Array]) -> dict[str, Array]:
    """The tolerance of each output; integers must be equal."""
    floats = {name for name, tensor in definition.outputs.items() if "float" in tensor.dtype}
    return {
        name: TOLERANCE + TOLERANCE * np.abs(want) if name in floats else np.zeros(want.shape)
        for name, want in expected.items()
    }


WRAPPER = '''\
"""{name}, a solution of {definition}, as the judge calls it."""

import importlib.util
import sys
from pathlib import Path

import torch

FOLDER = Path(__file__).parent / "sources"
sys.path.insert(0, str(FOLDER))
spec = importlib.util.spec_from_file_location("solution", FOLDER / {file!r})
module = importlib.util.module_from_spec(spec)
sys.modules["solution"] = module
spec.loader.exec_module(module)
RUN = getattr(module, {function!r})
INPUTS, OUTPUTS = {inputs!r}, {outputs!r}


def tensor(value, dtype):
    if not hasattr(value, "dtype"):
        return value
    signed = value.view("int16") if value.dtype == "uint16" else value
    return torch.from_numpy(signed).view(getattr(torch, dtype))


def {call}({parameters}):
    given = [tensor(v, d) for v, d in zip(({parameters},), INPUTS)]
    sizes = {{}}
    for value, (_, axes) in zip(given, {shapes!r}):
        sizes |= dict(zip(axes, value.shape)) if axes else {{}}
    sizes |= {constants!r}
    with torch.no_grad():
        if {into}:
            found = [
                torch.empty([sizes[axis] for axis in axes], dtype=getattr(torch, dtype))
                for axes, dtype, _ in OUTPUTS
            ]
            RUN(*given, *found)
        else:
            result = RUN(*given)
            if isinstance(result, dict):
                result = [result[name] for name in {names!r}]
            found = list(result) if isinstance(result, (tuple, list)) else [result]
    if len(found) != len(OUTPUTS):
        raise ValueError(f"it gives {{len(found)}} outputs, not {{len(OUTPUTS)}}")
    made = []
    for value, (axes, dtype, wanted) in zip(found, OUTPUTS):
        value = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        if str(value.dtype) != f"torch.{{dtype}}":
            raise TypeError(f"it gives {{value.dtype}}, not {{dtype}}")
        value = value.to(getattr(torch, wanted)).reshape(value.shape or (1,))
        made.append(value.cpu().numpy())
    return tuple(made)
'''


def candidate_of(solution: Solution, definition: Definition, folder: Path) -> Candidate:
    """Write it to a new folder; ExchangeError for a language that is not supported here."""
    if (language := solution.spec.language.value) not in HERE:
        raise ExchangeError(
            f"solution {solution.name}: {language} is not run here, {', '.join(HERE)} are"
        )
    for source in solution.sources:
        where = folder / "sources" / source.path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(source.content, encoding="utf-8")
    inputs, outputs = definition.inputs, definition.outputs
    function = definition.name if definition.name.isidentifier() else "run"
    (folder / "candidate.py").write_text(
        WRAPPER.format(
            name=solution.name,
            definition=definition.name,
            file=str(solution.get_entry_path()),
            function=solution.get_entry_symbol(),
            call=function,
            parameters=", ".join(inputs),
            inputs=[t.dtype.value for t in inputs.values()],
            outputs=[
                (t.shape or (), t.dtype.value, TORCH[given_as(t.dtype.value)])
                for t in outputs.values()
            ],
            shapes=[(name, tensor.shape) for name, tensor in inputs.items()],
            constants=definition.const_axes,
            names=list(outputs),
            into=solution.spec.destination_passing_style,
        ),
        encoding="utf-8",
    )
    return Candidate.of(f"{folder / 'candidate.py'}:{function}", arrays="numpy")
