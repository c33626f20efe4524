"""Rows more than 4 GiB into a buffer give the same bits as at its start (64-bit offsets).

Hardly a page of these buffers is touched. If blocks are distributed by row, only the last ones run.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.bugs.bug import edits
from conformance.cuda.emulator import Emulator, compiler
from conformance.support.machine_kernels import inputs_of, run
from kernels.cuda.formats.packing import Bfloats, Planes
from kernels.cuda.runtime.call import between, device_sizes, stages
from kernels.cuda.runtime.device import Buffer
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.launch import Launch
from kernels.cuda.table import CUDA_KERNELS
from kernels.errors import KernelError
from kernels.shapes import empty_outputs, sizes
from reference.formats import FORMATS
from reference.op import Arguments, Array

FAR = 5 * 2**30  # bytes: beyond 32 bits, also for one plane of a packed weight
TILE = 128  # rows: a multiple of every block's
BY_NAME = {kernel.name: kernel for kernel in CUDA_KERNELS}
Pieces = list[tuple[int, Array]]  # (byte offset, array) of a buffer


@dataclass(frozen=True, slots=True)
class FarOperands:
    """What depends on the index of the first row: arrays whose rows move, arrays of row indices,
    and the size that counts rows."""

    arrays: tuple[str, ...]
    numbers: tuple[str, ...]
    axis: str

    @property
    def by_block(self) -> bool:
        """Whether a row's index is that of a thread block."""
        return not self.numbers


MOVED = {
    "linear": FarOperands(("weight",), (), "out"),
    "dequantise": FarOperands(("data", "out"), (), "rows"),
    "embedding": FarOperands(("weight",), ("tokens",), "vocab"),
    "kv_write": FarOperands(("out",), ("cells",), "capacity"),
    "attention": FarOperands(("k", "v", "cell_positions"), ("lists",), "capacity"),
    "sparse_linear": FarOperands(("weight",), ("slots",), "held"),
    "sparse_axpy": FarOperands(("weight",), ("slots",), "held"),
}
CASES: tuple[tuple[str, dict[str, int]], ...] = (
    ("linear/cuda/generic/F16", {"tokens": 1, "hidden": 512, "out": TILE}),
    ("linear/cuda/generic/F16", {"tokens": 9, "hidden": 512, "out": TILE}),
    ("linear/cuda/tensor/F16", {"tokens": 1, "hidden": 512, "out": TILE}),
    ("linear/cuda/generic/Q8_0", {"tokens": 1, "hidden": 512, "out": TILE}),
    ("linear/cuda/generic/Q8_0", {"tokens": 9, "hidden": 512, "out": TILE}),
    ("linear/cuda/bf16/F16", {"tokens": 1, "hidden": 512, "out": TILE}),
    ("dequantise/cuda/generic/F16", {"rows": TILE, "hidden": 64}),
    ("embedding/cuda/generic/F16", {"tokens": 3, "vocab": 9, "hidden": 64}),
    ("kv_write/cuda/generic/F16", {"tokens": 3, "capacity": 9, "width": 64}),
    ("kv_write/cuda/generic/Q8_0", {"tokens": 3, "capacity": 9, "width": 64}),
    ("attention/cuda/scalar/F16", {"tokens": 2, "head_dim": 16, "capacity": 33}),
    ("attention/cuda/generic/F16", {"tokens": 2, "head_dim": 64, "capacity": 33}),
    ("attention/cuda/generic/F16", {"tokens": 9, "head_dim": 64, "capacity": 33}),
    ("attention/cuda/tensor/F16", {"tokens": 2, "head_dim": 64, "capacity": 33}),
    ("attention/cuda/tensor/F16", {"tokens": 9, "head_dim": 64, "capacity": 33}),
    ("sparse_linear/cuda/generic/F16", {"tokens": 3, "hidden": 64, "neurons": 40, "held": 40}),
    ("sparse_linear/cuda/generic/Q8_0", {"tokens": 3, "hidden": 64, "neurons": 40, "held": 40}),
    ("sparse_axpy/cuda/generic/F16", {"tokens": 3, "hidden": 64, "neurons": 40, "held": 40}),
    ("sparse_axpy/cuda/generic/Q8_0", {"tokens": 3, "hidden": 64, "neurons": 40, "held": 40}),
)  # fmt: skip


def planes(pack: Planes, weight: Array, first: int) -> Pieces:
    """The planes of a packed weight, without the rows before `first`."""
    of_row = weight.shape[1] // FORMATS[pack.format].block_bytes
    blocks, before = len(weight) * of_row, first * of_row
    packed, near, far = pack(weight), pack.begins(blocks), pack.begins(before + blocks)
    return [
        (far[i] + before * size, packed[near[i] : near[i] + blocks * size])
        for i, (_, size) in enumerate(pack.parts)
    ] + [(far[-1], packed[:0])]


def last_blocks(kernel: CudaKernel, first: int, folder: Path) -> CudaKernel:
    """The kernel with block indices from row `first` on, for a grid of TILE rows."""
    begin = f"(blockIdx.x + {first // TILE}u * gridDim.x)"
    for path in kernel.launches[0].folder.rglob("*.cu*"):
        (folder / path.name).write_text(path.read_text().replace("blockIdx.x", begin))
    return replace(kernel, stages=tuple(replace(x, folder=folder) for x in kernel.launches))


def upload(device: Emulator, pieces: Pieces) -> Buffer:
    """A buffer that holds only these pieces."""
    buffer = device.empty(max(at + piece.nbytes for at, piece in pieces))
    for at, piece in pieces:
        device.write(buffer.at(at, piece.nbytes), np.ascontiguousarray(piece))
    return buffer


def usual_arguments(kernel: CudaKernel, shape: dict[str, int]) -> Arguments:
    """The op's usual arguments; for attention, of one sequence."""
    few = {"sequences": 1, "kv_heads": 2, "heads": 4} if kernel.op == "attention" else {}
    return inputs_of(kernel, **few, **shape)


def run_far_away(kernel: CudaKernel, inputs: Arguments, folder: Path) -> Array:
    """The kernel's output for rows after others that are never read."""
    op, moved, device = kernel.spec, MOVED[kernel.op], Emulator(2**40, filled=False)
    near = sizes(op, inputs, kernel.format)
    ((name, out),) = empty_outputs(op, near, kernel.format).items()
    arrays: dict[str, Any] = {**inputs, name: out}
    if kernel.in_place:
        out[:] = arrays["before"]
    first = (FAR // arrays[moved.arrays[0]][:1].nbytes // TILE + 1) * TILE
    shape = near | {moved.axis: first + near[moved.axis]}
    if moved.by_block:
        kernel = last_blocks(kernel, first, folder)

    def pieces(argument: str, array: Array) -> Pieces:
        if argument == "weight" and isinstance(kernel.pack, Planes):
            return planes(kernel.pack, array, first)
        if argument == "weight" and isinstance(kernel.pack, Bfloats):
            array = kernel.pack(array)
        if argument in moved.arrays:
            return [(first * array[:1].nbytes, array)]
        if argument == "out" and op.name == "linear":
            return [(4 * (t * shape["out"] + first), row) for t, row in enumerate(array)]
        return [(0, array + first if argument in moved.numbers else array)]

    scalars = {n: value for n, value in arrays.items() if not isinstance(value, np.ndarray)}
    buffers = {n: upload(device, pieces(n, a)) for n, a in arrays.items() if n not in scalars}
    buffers |= {n: device.empty(size) for n, size in between(kernel, shape).items()}
    addresses = scalars | {n: buffer.address for n, buffer in buffers.items()}
    weights = {n: arrays[n].shape for n in moved.arrays}
    for launch in (stage for stage in stages(kernel) if isinstance(stage, Launch)):
        values = launch.values(addresses, device_sizes(kernel, weights) | shape)
        device.launch(launch, launch.at(near), values)
    for at, piece in pieces(name, out):
        device.read(buffers[name].at(at, piece.nbytes), piece)
    return out


IDS = [f"{name}-{'-'.join(map(str, shape.values()))}" for name, shape in CASES]


@pytest.mark.skipif(not compiler(), reason="no C++ compiler")
@pytest.mark.parametrize(("name", "shape"), CASES, ids=IDS)
def test_rows_beyond_4_gib_have_the_same_bits(name, shape, tmp_path):
    inputs = usual_arguments(BY_NAME[name], shape)
    assert_array_equal(run_far_away(BY_NAME[name], inputs, tmp_path), run(BY_NAME[name], **inputs))


NARROW = [*edits(Path(__file__).with_name("narrow.toml"))]


@pytest.mark.skipif(not compiler(), reason="no C++ compiler")
@pytest.mark.parametrize("bug", NARROW, ids=str)
def test_32_bit_offsets_are_detected(bug, tmp_path):
    """A kernel that counts bytes or elements in 32 bits overflows, or reads other memory."""
    (tmp_path / "edited").mkdir()
    kernel = bug.kernel(tmp_path / "edited")
    inputs = usual_arguments(kernel, next(shape for name, shape in CASES if name == kernel.name))
    expected = run(kernel, **inputs)  # right for small offsets
    with pytest.raises((KernelError, AssertionError)):
        assert_array_equal(run_far_away(kernel, inputs, tmp_path), expected)


LARGEST = {"tokens": 1, "hidden": 16384, "out": 262144}
LINEAR = [kernel for kernel in CUDA_KERNELS if kernel.op == "linear"]


@pytest.mark.parametrize("kernel", LINEAR, ids=[kernel.name for kernel in LINEAR])
def test_no_launch_parameter_is_a_size_in_bytes(kernel):
    """For weights above 2 GiB no launch parameter is a size in bytes."""
    row_bytes = FORMATS[kernel.format or ""].row_bytes(LARGEST["hidden"])
    weight = (LARGEST["out"], row_bytes)
    if kernel.pack:
        weight = (kernel.pack.bytes(*weight),)
    for launch in kernel.launches:
        addresses = {argument.name: 0 for argument in launch.arguments}
        values = launch.values(addresses, device_sizes(kernel, {"weight": weight}) | LARGEST)
        assert values[len(launch.arguments) :] == [LARGEST[axis] for axis in launch.sizes]
