"""Peers that do the same on the same GPU and the same memory, where they are here: cuBLAS by CuPy,
PyTorch, Triton."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bench.cuda.cases import OpCase
from bench.cuda.clock import Enqueue
from bench.race.experiment import first_line
from kernels.cuda.runtime.device import Buffer
from kernels.cuda.runtime.gpu import Gpu

HALF = ("F16", "BF16")  # formats that peers multiply, as they lie in memory


def peers(gpu: Gpu, case: OpCase, buffers: dict[str, list[Buffer]]) -> dict[str, Enqueue | str]:
    """Those who can do the case, over the memory that our kernel reads, or why one cannot."""
    if case.format not in HALF:
        return {}
    makers: dict[str, Callable[..., Enqueue]] = {}
    if case.op == "linear":
        makers = {"cuBLAS": _cublas, "PyTorch": _torch_linear}
        if case.shape["tokens"] == 1:
            makers["Triton"] = _triton
    elif case.op == "attention":
        makers = {"PyTorch": _torch_attention}
    found: dict[str, Enqueue | str] = {}
    for name, make in makers.items():
        try:
            found[name] = make(gpu, case, buffers)
        except Exception as error:  # not installed, without this type, without memory
            found[name] = first_line(error)
    return found


def _arrays(buffers: Sequence[Buffer], *dims: int) -> list[Any]:
    """CuPy's arrays of float16 over this memory."""
    import cupy

    memories = [cupy.cuda.UnownedMemory(b.address, b.bytes, b.owner) for b in buffers]
    pointers = [cupy.cuda.MemoryPointer(memory, 0) for memory in memories]
    return [cupy.ndarray(dims, cupy.float16, pointer) for pointer in pointers]


def _cublas(gpu: Gpu, case: OpCase, buffers: dict[str, list[Buffer]]) -> Enqueue:
    import cupy

    if case.format != "F16":
        raise ValueError(f"CuPy has no {case.format}")
    tokens, hidden, out = (case.shape[axis] for axis in ("tokens", "hidden", "out"))
    weights = _arrays(buffers["weight"], out, hidden)
    with gpu.stream:
        x = cupy.asarray(case.inputs["x"].astype(np.float16))
        result = cupy.empty((tokens, out), cupy.float16)

    def enqueue(i: int) -> None:
        with gpu.stream:
            cupy.matmul(x, weights[i % len(weights)].T, out=result)

    return enqueue


def _tensors(case: OpCase, buffers: Sequence[Buffer], *dims: int) -> list[Any]:
    import torch

    kind = {"F16": torch.float16, "BF16": torch.bfloat16}[case.format]
    return [torch.from_dlpack(array).view(kind) for array in _arrays(buffers, *dims)]


def _on(gpu: Gpu, call: Enqueue) -> Enqueue:
    """A call of PyTorch's or Triton's, on our stream."""
    import torch

    torch.set_grad_enabled(False)
    torch.cuda.synchronize()  # what was made for it was made on another stream
    stream = torch.cuda.ExternalStream(gpu.stream.ptr)

    def enqueue(i: int) -> None:
        with torch.cuda.stream(stream):
            call(i)

    return enqueue


def _torch_linear(gpu: Gpu, case: OpCase, buffers: dict[str, list[Buffer]]) -> Enqueue:
    import torch

    weights = _tensors(case, buffers["weight"], case.shape["out"], case.shape["hidden"])
    x = torch.from_numpy(case.inputs["x"]).to("cuda").to(weights[0].dtype)
    multiply = torch.nn.functional.linear
    return _on(gpu, lambda i: multiply(x, weights[i % len(weights)]))


def _triton(gpu: Gpu, case: OpCase, buffers: dict[str, list[Buffer]]) -> Enqueue:
    import torch

    from bench.cuda.triton_gemv import gemv

    weights = _tensors(case, buffers["weight"], case.shape["out"], case.shape["hidden"])
    x = torch.from_numpy(case.inputs["x"][0]).to("cuda").to(weights[0].dtype)
    result = torch.empty(case.shape["out"], dtype=x.dtype, device="cuda")
    return _on(gpu, lambda i: gemv(x, weights[i % len(weights)], result))


def _torch_attention(gpu: Gpu, case: OpCase, buffers: dict[str, list[Buffer]]) -> Enqueue:
    import torch

    s = case.shape
    dims = s["capacity"], s["kv_heads"], s["head_dim"]
    keys, values = (
        [t.permute(1, 0, 2)[None] for t in _tensors(case, buffers[name], *dims)] for name in "kv"
    )
    q = torch.from_numpy(case.inputs["q"]).to("cuda").to(keys[0].dtype).permute(1, 0, 2)[None]
    attend = torch.nn.functional.scaled_dot_product_attention
    shared = {"enable_gqa": True} if s["heads"] != s["kv_heads"] else {}
    return _on(gpu, lambda i: attend(q, keys[i % len(keys)], values[i % len(values)], **shared))
