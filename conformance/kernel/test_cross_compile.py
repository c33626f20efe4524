"""Portable kernels, compiled for aarch64 and inspected. Only those in which a model spends its
time, in the formats that are hardest to convert, since all would take a minute."""

import json

import pytest

from conformance.support.cross_compile import assembly, called, python_for

pytestmark = pytest.mark.exhaustive
AARCH64 = "aarch64-unknown-linux-gnu", "neoverse-n1", "+dotprod,+fullfp16,+lse"
X86_64 = "x86_64-unknown-linux-gnu", "x86-64"
KERNELS = [
    "linear/cpu/generic/F16",
    "linear/cpu/generic/Q4_0",
    "attention/cpu/generic/F16",
    "kv_write/cpu/generic/F16",
    "kv_write/cpu/generic/Q4_0",
    "rms_norm/cpu/generic",
    "layer_norm/cpu/generic",
    "rope_norm/cpu/generic",
    "quantise_activations/cpu/generic",
    "quantise_e4m3/cpu/generic",
    "dequantise_e4m3/cpu/generic",
    "swiglu/cpu/generic",
]

CODE = """
import json, sys
from conformance.support import for_aarch64
for_aarch64.pretend()

from kernels.cpu.runtime.object_code import optimised
from kernels.table import find
found = {
    name: [str(optimised(share.function)) for share in find(name).shares] for name in sys.argv[1:]
}
json.dump(found, sys.stdout)
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    """The shares of these kernels, as optimised LLVM IR for aarch64."""
    _, cpu, features = AARCH64
    cache = tmp_path_factory.mktemp("cache")
    names = features.replace("+", "").split(",")
    return json.loads(python_for(cpu, names, CODE, *KERNELS, ASSAY_CACHE=str(cache)))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_for_every_cpu_compile_for_aarch64(code, name):
    """None calls an x86 instruction or a conversion routine; linear multiplies in NEON.

    A compiler's own routines begin with two underscores, e.g. __extendhfsf2 for float16; libm's and
    Numba's do not.
    """
    assert code[name]
    for share in code[name]:
        assert "llvm.x86" not in share
        text = assembly(share, *AARCH64)
        assert not [function for function in called(text) if function.startswith("__")]
        if name.startswith("linear/cpu/generic"):
            assert "\tfmla\tv" in text
        if name == "linear/cpu/generic/F16":
            assert "\tfcvtl\tv" in text


def widening(kind: str) -> str:
    """IR that widens float16."""
    return f"""
define <8 x {kind}> @widen(<8 x half> %v) {{
  %r = fpext <8 x half> %v to <8 x {kind}>
  ret <8 x {kind}> %r
}}
"""


def test_float16_conversion_routines_are_detected():
    """Where a machine calls a routine for float16, its name is one that the test above finds."""
    assert "__extendhfsf2" in called(assembly(widening("float"), *X86_64))
    assert "__extendhftf2" in called(assembly(widening("fp128"), *AARCH64))
    assert not called(assembly(widening("float"), *AARCH64))
    assert "\tfcvtl\tv" in assembly(widening("float"), *AARCH64)
