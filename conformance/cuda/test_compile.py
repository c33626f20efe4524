"""Every CUDA kernel compiles for the GPUs that it says it runs on, and spills nothing."""

import pytest

from kernels.cuda import nvrtc
from kernels.cuda.launch import Launch
from kernels.cuda.table import CUDA_KERNELS

CAPABILITIES = (75, 80, 90)
MOST_REGISTERS = 255  # of a thread
MOST_SHARED = 48 << 10  # bytes that a kernel may declare

pytestmark = pytest.mark.skipif(bool(nvrtc.missing()), reason=nvrtc.missing())

LAUNCHES = {
    f"{launch.name} sm_{capability}": (launch, capability)
    for kernel in CUDA_KERNELS
    for launch in kernel.launches
    for capability in CAPABILITIES
    if capability >= kernel.capability
}


@pytest.mark.parametrize(("launch", "capability"), LAUNCHES.values(), ids=LAUNCHES.keys())
def test_compiles_and_spills_nothing(launch: Launch, capability: int, record_property) -> None:
    compiled = nvrtc.compiled(launch, capability)
    record_property("cuda", (launch.name, capability, compiled.registers, compiled.shared))
    assert compiled.cubin
    assert not compiled.spills, f"{compiled.spills} bytes"
    assert 0 < compiled.registers <= MOST_REGISTERS
    assert compiled.shared <= MOST_SHARED
