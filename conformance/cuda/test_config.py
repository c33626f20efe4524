"""Constants that CUDA and Python share: any choice of a kernel's knobs compiles, and gives the same
bits."""

import random
from dataclasses import replace
from zlib import crc32

import pytest

from conformance.cuda.emulator import Emulator, compiler
from conformance.support.depth import DEEP
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.linear import linear
from kernels.cuda.runtime import nvrtc
from kernels.cuda.runtime.call import bind
from kernels.cuda.runtime.current import taking_the_place
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.launch import Launch
from kernels.knob import Values
from kernels.shapes import empty_outputs
from kernels.table import find_any

TUNABLE = {kernel.name: kernel for kernel in EVERY_CUDA if kernel.knobs}
QUICK = (
    "linear/cuda/generic/F16", "linear/cuda/generic/Q4_K", "linear/cuda/tensor/F16",
    "attention/cuda/generic/F16", "attention/cuda/tensor/F16",
)  # fmt: skip
SIZES = {  # of each case, as far as an op has these axes
    "tokens": (1, 2, 3, 5, 8, 20, 70, 300),
    "hidden": (256, 1280),
    "out": (40, 128), "out_1": (40, 128), "out_2": (40, 128),
    "capacity": (300, 700), "heads": (8,), "kv_heads": (2,), "head_dim": (128,),
}  # fmt: skip


def choices(kernel: CudaKernel, count: int) -> list[Values]:
    """So many random ones, the same each time, none of whose knobs has its default."""
    rng = random.Random(crc32(kernel.name.encode()))
    return [{knob.name: rng.choice(knob.others) for knob in kernel.knobs} for _ in range(count)]


def outputs(kernel: CudaKernel, tokens: int) -> list[bytes]:
    """What the emulated kernel gives for a case of so many tokens."""
    spec, index = kernel.spec, SIZES["tokens"].index(tokens)
    own = {axis: values[index % len(values)] for axis, values in SIZES.items()} | {"tokens": tokens}
    usual = spec.corners[0] if spec.corners else {axis: min(of) for axis, of in spec.axes.items()}
    shape = {axis: own.get(axis, usual.get(axis, 0)) for axis in spec.axes}
    case = spec.case(shape, "normal", 3, kernel.format)
    if not kernel.takes(case.shape):
        return []
    found = empty_outputs(spec, case.shape, kernel.format)
    bind(kernel, spec.make(case), found)()
    return [value.tobytes() for value in found.values()]


@pytest.mark.skipif(not compiler(), reason="no C++ compiler")
@pytest.mark.parametrize("name", TUNABLE if DEEP else QUICK)
def test_any_choice_gives_the_same_bits(name):
    kernel = TUNABLE[name]
    with taking_the_place(Emulator()):
        steps = [n for n in SIZES["tokens"] if n < 64 or kernel.op != "attention"]
        usual = [outputs(kernel, tokens) for tokens in steps]
        for values in choices(kernel, 6 if DEEP else 1):
            tuned = kernel.tuned(values)
            assert [outputs(tuned, tokens) for tokens in steps] == usual, values


def neighbours() -> dict[str, Launch]:
    """Each other value of each knob of each source, or in quick runs some of them."""
    found: dict[str, Launch] = {}
    for kernel in TUNABLE.values():
        for launch in kernel.launches:
            for values in ({k.name: value} for k in launch.config.knobs for value in k.others):
                name = f"{launch.source} {values} {launch.format if DEEP else ''}"
                if DEEP or crc32(name.encode()) % 4 == 0:
                    tuned = replace(launch, config=launch.config.choosing(values))
                    found.setdefault(name, tuned)
    return found


NEIGHBOURS = neighbours()


@pytest.mark.skipif(bool(nvrtc.missing()), reason=nvrtc.missing())
@pytest.mark.parametrize("launch", NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
def test_every_choice_compiles(launch: Launch):
    """One that spills is merely slow."""
    assert nvrtc.compiled(launch, 90).shared <= 48 << 10


def test_a_choice_is_one_of_a_knobs_values():
    """Names that are no knob's belong to another source of the kernel."""
    config = linear.FLOAT.choosing({"ROWS_OF_1": 4, "BLOCKS": 7})
    assert config["ROWS_OF_1"] == 4
    assert "constexpr int ROWS_OF_1 = 4;" in config.header
    with pytest.raises(ValueError, match=r"ROWS_OF_1 is one of \(1, 2, 4\), got 3"):
        linear.FLOAT.choosing({"ROWS_OF_1": 3})


def test_a_choice_is_another_kernel_to_the_judge():
    kernel = find_any("linear/cuda/generic/F16")
    tuned = kernel.tuned({"ROWS_OF_1": 4})
    assert tuned.name == kernel.name
    digests = [[launch.digest for launch in one.launches] for one in (kernel, tuned)]
    assert not set(digests[0]) & set(digests[1])
    grids = [one.launches[0].at({"tokens": 1, "out": 64, "hidden": 64}) for one in (kernel, tuned)]
    assert [grid.blocks[0] for grid in grids] == [8, 4]
