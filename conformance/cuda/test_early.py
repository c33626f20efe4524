"""Programmatic dependent launch: what the driver is asked for, and that machine code waits for the
previous kernel before it accesses memory that others write."""

import ctypes
import shutil
import subprocess
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime import sass
from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.early import early_launch
from kernels.cuda.runtime.gpu import Gpu
from kernels.cuda.runtime.launch import Grid

EARLY = {(x.source, x.function): x for k in EVERY_CUDA for x in k.launches if x.waits}
WAITS, MEMORY = "ACQBULK", ("LD", "LDG", "ST", "STG", "LDGSTS", "ATOM", "ATOMG", "RED", "UBLKCP")
AHEAD = {  # loads of weights that stand before a product waits, at least: on tensor cores in a loop
    ("linear_blocks.cu", "linear_1"): 8, ("linear_blocks.cu", "linear_8"): 6,
    ("linear_blocks_joined.cu", "linear_pair_1"): 8,
    ("linear_blocks_joined.cu", "linear_trio_1"): 8,
    ("linear_gated_blocks.cu", "linear_swiglu_round"): 8,
    ("linear_tensor.cu", "linear_tensor_8"): 4, ("linear_gated_tensor.cu", "linear_swiglu"): 4,
    ("linear_float.cu", "linear_1"): 4, ("linear_float.cu", "linear_8"): 4,
}  # fmt: skip

# A stand-in driver that records its calls, with the structures of cuda.h.
DRIVER = """
typedef struct { int id; char pad[4]; union { char pad[64]; int allowed; } value; } Attribute;
typedef struct {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
  void *stream;
  Attribute *attributes;
  unsigned count;
} Config;
long told[14];
int cuLaunchKernelEx(const Config *c, void *function, void **parameters, void **extra) {
  long now[] = {c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y, c->block_z, c->shared,
                (long)c->stream, c->count, c->attributes[0].id, c->attributes[0].value.allowed,
                (long)function, *(long *)parameters[0], *(int *)parameters[1]};
  for (int i = 0; i < 14; ++i) told[i] = now[i];
  return function == (void *)13 ? 719 : 0;
}
"""


@pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler")
def test_launch_attributes_of_the_driver_call(tmp_path):
    """The grid, the stream, the parameters and the one attribute; an error code raises."""
    source, library = tmp_path / "driver.c", tmp_path / "driver.so"
    source.write_text(DRIVER)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    launch, values = early_launch(str(library)), [np.uint64(2**40 + 1), np.int32(-7)]
    launch(12, Grid((5, 6, 7), 128, 4096), values, 99)
    told = list((ctypes.c_long * 14).in_dll(ctypes.CDLL(str(library)), "told"))
    assert told == [5, 6, 7, 128, 1, 1, 4096, 99, 1, 6, 1, 12, 2**40 + 1, -7]
    with pytest.raises(DeviceError, match=r"^cuLaunchKernelEx: CUDA's error 719$"):
        launch(13, Grid((1, 1, 1), 32), values, 0)
    source.write_text("int cuInit;")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", tmp_path / "old.so", source], check=True)
    assert early_launch(str(tmp_path / "old.so")) is None
    assert early_launch(str(tmp_path / "none.so")) is None


def test_the_driver_gets_the_functions_address():
    """CuPy's RawKernel, which a module gives, holds the function whose address the driver knows."""
    cupy = pytest.importorskip("cupy")
    assert hasattr(cupy.RawKernel, "kernel")
    assert hasattr(cupy.cuda.function.Function, "ptr")
    launch = next(iter(EARLY.values()))
    gpu, asked = object.__new__(Gpu), list[tuple[object, ...]]()
    raw = SimpleNamespace(kernel=SimpleNamespace(ptr=12))
    gpu.__dict__ |= {
        "_functions": {launch.digest: raw}, "_shared": {}, "_errors": (), "stream": StreamAt(99),
        "_early": lambda *given: asked.append(given), "name": "a GPU",
    }  # fmt: skip
    gpu.launch(launch, Grid((1, 1, 1), 32), [np.int32(5)])
    assert asked == [(12, Grid((1, 1, 1), 32), [5], 99)]


class StreamAt(nullcontext[None]):
    """A stream with this address."""

    def __init__(self, ptr: int) -> None:
        super().__init__()
        self.ptr = ptr


def reachable_before_the_wait(code: sass.MachineCode) -> list[sass.Instruction]:
    """Instructions reachable without a wait; diverged threads reconverge (BSYNC) anywhere."""
    own, meetings = code.instructions, [x.label for x in code.instructions if x.stem == "BSSY"]
    numbers = {one.address: i for i, one in enumerate(own)}
    found, ways = set[int](), [0]
    while ways:
        i = ways.pop()
        if i in found or i == len(own) or (own[i].stem == WAITS and not own[i].predicate):
            continue
        found.add(i)
        labels = {"BRA": [own[i].label], "BSYNC": meetings}.get(own[i].stem, [])
        ways += [numbers[code.labels[label]] for label in labels]
        if own[i].predicate or own[i].stem not in ("BRA", "EXIT"):
            ways.append(i + 1)
    return [own[i] for i in sorted(found)]


@pytest.mark.skipif(bool(sass.missing()), reason=sass.missing())
@pytest.mark.parametrize("name", EARLY, ids="/".join)
def test_only_weights_are_loaded_before_the_wait(name):
    """On no path before the wait is anything but weights loaded, anything stored, or the kernel
    left, wherever the compiler has moved it. (Parameters are in constant memory; shared memory is
    the block's own.)"""
    launch = EARLY[name]
    code = sass.read(launch, 90)
    before = reachable_before_the_wait(code)
    touched = [one for one in before if one.stem in (*MEMORY, "EXIT")]
    loads = [x for x in code.loads if x.instruction in touched]
    assert len(touched) == len(loads) >= AHEAD.get(name, 0)
    assert {argument for x in loads for argument in x.argument.split("|")} <= launch.lasting
    assert {one.stem for one in code.instructions if one not in before} & {"STG", "ST"}


def test_kernels_of_a_step_use_programmatic_launch():
    """Norms, rounding, RoPE, attention, products and argmax begin early, on GPUs and drivers that
    support it; products load their first weights before they wait."""
    assert {source for source, _ in EARLY} >= {
        "add_norm.cu", "rope_write.cu", "attention_few.cu", "attention_merge_round.cu", "choice.cu"
    }  # fmt: skip
    assert EARLY.keys() >= AHEAD.keys()
