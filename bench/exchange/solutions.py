"""A solution as a candidate for the judge: its sources in a folder, and a generated file with a
function of the definition's inputs that passes them on as tensors."""

from pathlib import Path

from flashinfer_bench.data import Definition, Solution

from bench.exchange.dataset import ExchangeError
from bench.exchange.ops import given_as
from kernels.foreign.candidate import Candidate

HERE = ("python", "triton")  # languages whose solutions are called from Python
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
TORCH = {"f32": "float32", "i64": "int64", "i32": "int32", "u8": "uint8"}


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
