"""A small dataset as flashinfer-bench has them: two definitions, their workloads, and solutions
right and wrong."""

import json
from pathlib import Path
from typing import Any

import numpy as np

NORM = """
import torch

def run(x, weight, eps):
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * weight.float()).to(x.dtype)
"""
PRODUCT = """
import torch

def run(a, b):
    return a @ b.T
"""


def tensor(dtype: str, *axes: str) -> dict[str, Any]:
    return {"shape": list(axes) or None, "dtype": dtype}


DEFINITIONS: dict[str, dict[str, Any]] = {
    "norm_h64": {
        "name": "norm_h64",
        "op_type": "rmsnorm",
        "description": "a norm in bfloat16",
        "axes": {"tokens": {"type": "var"}, "hidden": {"type": "const", "value": 64}},
        "inputs": {
            "x": tensor("bfloat16", "tokens", "hidden"),
            "weight": tensor("bfloat16", "hidden"),
            "eps": tensor("float32"),
        },
        "outputs": {"y": tensor("bfloat16", "tokens", "hidden")},
        "reference": NORM,
        "tags": ["stage:any"],
    },
    "gemm": {
        "name": "gemm",
        "op_type": "gemm",
        "axes": {axis: {"type": "var"} for axis in "mnk"},
        "inputs": {"a": tensor("float32", "m", "k"), "b": tensor("float32", "n", "k")},
        "outputs": {"c": tensor("float32", "m", "n")},
        "reference": PRODUCT,
        "constraints": ["k % 8 == 0"],
    },
}
WORKLOADS: dict[str, list[dict[str, Any]]] = {
    "norm_h64": [
        {
            "uuid": f"norm-{tokens}",
            "axes": {"tokens": tokens},
            "inputs": {
                "x": {"type": "random"},
                "weight": {"type": "random"},
                "eps": {"type": "scalar", "value": 1e-5},
            },
        }
        for tokens in (1, 7)
    ],
    "gemm": [
        {
            "uuid": "gemm-0",
            "axes": {"m": 3, "n": 16, "k": 32},
            "inputs": {"a": {"type": "random"}, "b": {"type": "random"}},
        }
    ],
}
INTO = "import torch\n\ndef run(x, weight, eps, y):\n    y.copy_({})\n"
RIGHT = "torch.nn.functional.rms_norm(x.float(), (64,), weight.float(), eps)"
SOLUTIONS = {  # name: definition, source, whether outputs are arguments
    "into": ("norm_h64", INTO.format(RIGHT), True),
    "forgets-weight": ("norm_h64", INTO.format(RIGHT.replace("weight.float()", "None")), True),
    "zeros": ("norm_h64", INTO.format("torch.zeros_like(x)"), True),
    "nan": ("norm_h64", INTO.format("x / 0 * 0"), True),
    "float": ("norm_h64", f"import torch\ndef run(x, weight, eps):\n    return {RIGHT}\n", False),
    "raises": ("norm_h64", "def run(x, weight, eps, y):\n    raise OSError('no')\n", True),
    "no-import": ("norm_h64", "import nowhere_at_all\n", True),
    "product": ("gemm", "def run(a, b):\n    return a.matmul(b.T)\n", False),
    "few-rows": ("gemm", "def run(a, b):\n    return a[:2].matmul(b.T)\n", False),
}


def solution(name: str, language: str = "python") -> dict[str, Any]:
    return _solution(name, *SOLUTIONS[name], language)


def _solution(
    name: str, definition: str, source: str, into: bool, language: str = "python"
) -> dict[str, Any]:
    return {
        "name": name,
        "definition": definition,
        "author": "a test",
        "description": "as told",
        "spec": {
            "language": language,
            "target_hardware": ["cpu"],
            "entry_point": "main.py::run",
            "dependencies": [],
            "destination_passing_style": into,
        },
        "sources": [{"path": "main.py", "content": source}],
    }


def rows_of_table(root: Path) -> Path:
    """A dataset whose indices are in a file of safetensors: a solution that takes the rows, and one
    that takes the last of them for all that are above 50."""
    from safetensors.numpy import save_file

    definition = {
        "name": "rows",
        "op_type": "gather",
        "axes": {
            "n": {"type": "var"},
            "rows": {"type": "const", "value": 100},
            "width": {"type": "const", "value": 8},
        },
        "inputs": {
            "table": tensor("float16", "rows", "width"), "indices": tensor("int64", "n")
        },
        "outputs": {"out": tensor("float16", "n", "width")},
        "reference": "def run(table, indices):\n    return table[indices]\n",
    }  # fmt: skip
    (root / "blob").mkdir(parents=True)
    save_file({"indices": np.array([0, 99, 7, 7, 41])}, root / "blob/rows.safetensors")
    indices = {"type": "safetensors", "path": "blob/rows.safetensors", "tensor_key": "indices"}
    workload = {
        "uuid": "r0", "axes": {"n": 5}, "inputs": {"table": {"type": "random"}, "indices": indices}
    }  # fmt: skip
    _put_definition(root, definition, [workload])
    for name, index in (("right", "indices"), ("wrong", "indices.clip(0, 50)")):
        source = f"def run(table, indices):\n    return table[{index}]\n"
        _put(root / f"solutions/{name}.json", _solution(name, "rows", source, False))
    return root


def write(root: Path) -> Path:
    """All of it."""
    for name, definition in DEFINITIONS.items():
        _put_definition(root, definition, WORKLOADS[name])
    for name in SOLUTIONS:
        _put(root / "solutions" / f"{name}.json", solution(name))
    return root


def _put_definition(root: Path, said: dict[str, Any], workloads: list[dict[str, Any]]) -> None:
    name, folder = said["name"], said["op_type"]
    _put(root / "definitions" / folder / f"{name}.json", said)
    nothing = {"solution": None, "evaluation": None}
    lines = ({"definition": name, "workload": w, **nothing} for w in workloads)
    path = root / "workloads" / folder / f"{name}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _put(path: Path, said: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said))
