"""Programmatic dependent launch: what the driver is asked for, and that machine code waits for the
previous kernel before it accesses memory."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime import sass
from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.early import early_launch
from kernels.cuda.runtime.launch import Grid

EARLY = {x.source: x for k in EVERY_CUDA for x in k.launches if x.waits}
WAITS, MEMORY = "ACQBULK", ("LD", "LDG", "ST", "STG", "LDGSTS", "ATOM", "ATOMG", "RED", "UBLKCP")

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
def test_what_the_driver_is_asked(tmp_path):
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


@pytest.mark.skipif(bool(sass.missing()), reason=sass.missing())
@pytest.mark.parametrize("source", EARLY)
def test_machine_code_waits_first(source):
    """In every function of the source no load or store precedes the wait, wherever the compiler has
    moved it. (Parameters are in constant memory; shared memory is the block's own.)"""
    code = sass.read(EARLY[source], 90)
    for name, (instructions, _) in sass.disassembled(code.compiled.cubin).items():
        stems = [one.stem for one in instructions]
        assert stems.count(WAITS) == 1, name
        waited = stems.index(WAITS)
        assert not set(stems[:waited]) & set(MEMORY), name
        assert set(stems[waited:]) & set(MEMORY), name
        assert not instructions[waited].predicate, name


def test_small_kernels_of_a_step_begin_early():
    """Norms, rounding, RoPE and argmax begin early, on GPUs and drivers that support it."""
    assert EARLY.keys() >= {"add_norm.cu", "gated_round.cu", "rope_write.cu", "choice.cu"}
