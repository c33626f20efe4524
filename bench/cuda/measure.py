"""Kernels over device memory of their own, and an op at a size measured on a GPU: ours and peers in
turns, cold, checked. Peers do the same on the same GPU and the same memory, where they are here:
cuBLAS by CuPy, PyTorch, Triton."""

from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from bench.cuda.cases import OpCase
from bench.cuda.clock import RULE, Ceilings, Clock, Enqueue, contender
from bench.race.experiment import Experiment, first_line
from bench.race.results import Measurement
from kernels.cuda.runtime.call import between, calls, device_sizes, packed_weights, stages
from kernels.cuda.runtime.device import Buffer, Device, upload
from kernels.cuda.runtime.gpu import Gpu
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.product import Stage
from kernels.cuda.table import CUDA_KERNELS
from kernels.judge import compare
from kernels.shapes import empty_outputs, sizes
from reference.op import Arguments, Array, Case
from reference.quantise_activations import QUANTISING

HALF = ("F16", "BF16")  # formats that peers multiply, as they lie in memory
OURS = "assay"
TIMES = 8  # the cache that copies together are larger than
ROUNDING = "rounding activations"  # what a second row has beside the kernel itself


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


Call = Callable[[], None]


class Bound:
    """A kernel with these inputs, of which those called `cold` lie there in `copies`: each run
    reads the next ones, so that no cache holds them. Where it reads rounded activations, they are
    rounded here."""

    def __init__(
        self,
        device: Device,
        kernel: CudaKernel,
        inputs: Arguments,
        cold: Sequence[str] = (),
        copies: int = 1,
    ) -> None:
        host = inputs | packed_weights(kernel, inputs)
        arrays = {n: np.ascontiguousarray(a) for n, a in host.items() if isinstance(a, np.ndarray)}
        shape = device_sizes(kernel, {n: a.shape for n, a in arrays.items()})
        shape |= sizes(kernel.spec, inputs, kernel.format)
        self._device, self._host, self._shape = device, host, shape
        self.cold = tuple(cold)
        self._outputs = empty_outputs(kernel.spec, shape, kernel.format)
        self.buffers = {n: [upload(device, a)] for n, a in arrays.items() if n not in cold}
        self.buffers |= {n: [upload(device, arrays[n]) for _ in range(copies)] for n in cold}
        self.buffers |= {n: [device.empty(a.nbytes)] for n, a in self._outputs.items()}
        self.buffers |= {n: [device.empty(s)] for n, s in between(kernel, shape).items()}
        for output, source in kernel.in_place:
            device.write(self.buffers[output][0], arrays[source])
        every = stages(kernel)
        before = every[: -len(kernel.stages)]
        self._rounding = self._calls(before, 0)
        self._turns = [self._calls(kernel.stages, i) for i in range(copies)]
        for stage in every:
            device.prepare(stage)
        self._run(self._rounding)

    def running(self, kernel: CudaKernel) -> "Bound":
        """The same arrays, in the same memory, for another choice of the kernel's knobs; outputs
        are cleared."""
        other = copy(self)
        other._turns = [self._calls(kernel.stages, i) for i in range(len(self._turns))]
        for stage in kernel.stages:
            self._device.prepare(stage)
        for name in self._outputs:
            self._device.clear(self.buffers[name][0])
        return other

    def _calls(self, every: Sequence[Stage], turn: int) -> list[Call]:
        found = {name: of[turn % len(of)].address for name, of in self.buffers.items()}
        return calls(self._device, every, {**self._host, **found}, self._shape)

    def _run(self, every: Sequence[Call]) -> None:
        for do in every:
            do()

    def enqueue(self, i: int) -> None:
        """Run it on the i-th copies."""
        self._run(self._turns[i % len(self._turns)])

    def enqueue_rounding(self, i: int) -> None:
        """The same, rounding its activations anew."""
        self._run(self._rounding)
        self.enqueue(i)

    def launches(self, *, rounding: bool) -> int:
        """How many a run takes."""
        return len(self._turns[0]) + (len(self._rounding) if rounding else 0)

    def outputs(self) -> dict[str, Array]:
        """What the last run gave."""
        for name, array in self._outputs.items():
            self._device.read(self.buffers[name][0], array)
        return self._outputs


def kernels_for(case: OpCase, gpu: Gpu, out: Collection[str]) -> list[CudaKernel]:
    """All that can do it, but for those that are called so."""
    those = [k for k in CUDA_KERNELS if (k.op, k.format) == (case.op, case.format)]
    return [k for k in those if k.takes(case.shape) and not k.lacks(gpu) and k.name not in out]


def copies_of(case: OpCase, ceilings: Ceilings) -> int:
    """Of what is cold, so that no cache holds it when its turn comes."""
    return 1 + int(TIMES * ceilings.cache // max(case.cost.bytes, 1))


def row_of(case: OpCase, ceilings: Ceilings) -> Measurement:
    """What is known of a case before it is measured."""
    return ceilings.limit(case.cost.bytes, case.cost.operations).of(Measurement(
        bench="gpu", test=case.test, target="cuda", format=case.format, shape=case.sizes,
        cache="cold", bytes=case.cost.bytes, operations=case.cost.operations,
    ))  # fmt: skip


def measure(
    gpu: Gpu, clock: Clock, ceilings: Ceilings, case: OpCase, out: Collection[str]
) -> list[Measurement]:
    """A row for each contender, those who are absent too; kernels called so are left `out`. Who
    gives wrong outputs has no speed."""
    copies = copies_of(case, ceilings)
    kernels = kernels_for(case, gpu, out)
    if not kernels:
        raise LookupError(f"no kernel for {case.op} {case.format} passed")
    common = row_of(case, ceilings)
    bound = {k.variant: Bound(gpu, k, case.inputs, case.cold, copies) for k in kernels}
    plain = next((bound[k.variant] for k in kernels if not k.pack), None)
    others = peers(gpu, case, plain.buffers) if plain else {}
    entries: dict[str, tuple[Measurement, Enqueue | str]] = {}
    for kernel in kernels:
        own, row = bound[kernel.variant], replace(common, variant=kernel.variant, checked=1)
        wrong = check(case, kernel, own)
        entries[kernel.variant] = row, wrong or own.enqueue
        if kernel.activations in QUANTISING:
            rounds = replace(row, settings=ROUNDING)
            entries[f"{kernel.variant} {ROUNDING}"] = rounds, wrong or own.enqueue_rounding
    entries |= {name: (replace(common, contender=name), peer) for name, peer in others.items()}
    clock.wake()
    raced = Experiment({name: contender(clock, *entry) for name, entry in entries.items()})
    return raced.run(RULE)


def check(case: OpCase, kernel: CudaKernel, bound: Bound) -> str:
    """What is wrong with its output, before anything is timed."""
    bound.enqueue(0)
    inputs, outputs = case.part(case.inputs, bound.outputs())
    at = Case(sizes(kernel.spec, inputs, case.format), format=case.format)
    return compare(kernel, at, inputs, outputs).failure
