"""Assay on aarch64, emulated (conformance/arm.sh): its results, and whether its bits equal this
machine's. `make test-arm` runs all of it; elsewhere a sample runs if the root file system exists.

Kernels are compiled here and loaded there, since a compiler under emulation takes minutes; the
first test shows that they equal what the other machine compiles.
"""

import json
import os
from pathlib import Path

import pytest

from conformance.support import bits
from conformance.support.child import output_of, run
from conformance.support.rooms import ROOT
from kernels.table import KERNELS, find

SCRIPT = Path(ROOT) / "conformance" / "arm.sh"
ALL = bool(os.environ.get("ASSAY_ARM_ALL"))
PATIENCE = 3600  # seconds: everything takes twenty times as long as here
whole = pytest.mark.skipif(not ALL, reason="of aarch64 `make test-arm` alone tries this")
BLOCKS = "Q8_0", "Q4_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "MXFP4", "TQ2_0"
NEON = [f"linear/cpu/{way}/{f}" for f in BLOCKS for way in ("neon_dotprod", "neon_i8mm")]
NEON.append("linear_experts/cpu/neon_i8mm/Q4_0")
FAST = [f"linear/cpu/neon_bf16/{f}" for f in ("F32", "F16", "BF16")]  # of other bits
PORTABLE = [
    kernel.name
    for kernel in KERNELS
    if kernel.variant == "generic" and kernel.format in (None, "F16", "Q4_0", "Q4_K")
]
SAMPLE = ["rms_norm/cpu/generic", "linear/cpu/neon_i8mm/Q8_0"]


class ArmMachine:
    """The emulated machine: its programs, and kernels compiled here for it."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.told = self.program("-m", "conformance.support.for_aarch64").strip()

    def program(self, *arguments: str, cache: Path | None = None, **variables: str) -> str:
        """The output of its Python."""
        environment = {
            **os.environ, "ASSAY_ARM_CACHE": str(cache or self.cache), "PYTHONPATH": str(ROOT),
            **variables,
        }  # fmt: skip
        done = run("bash", SCRIPT, "run", *arguments, env=environment, timeout=PATIENCE)
        if done.returncode == 3:
            pytest.skip(done.stderr.strip())
        assert not done.returncode, done.stderr
        return done.stdout

    def compiled(self, *kernels: str) -> dict[str, str]:
        """Digests of all machine code that it runs."""
        program = (
            "import runpy; runpy.run_module('conformance.support.for_aarch64', None, '__main__')"
        )
        environment = {**os.environ, "ASSAY_CACHE": str(self.cache)}
        said = output_of(program, self.told, *kernels, cwd=ROOT, env=environment, timeout=PATIENCE)
        return dict(json.loads(line) for line in said.splitlines())


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    return ArmMachine(tmp_path_factory.mktemp("arm"))


FEATURES = """
from kernels.provenance import machine
from kernels.table import find
print(machine().rpartition("/")[0])
for variant in ("avx2", "neon_dotprod", "neon_i8mm"):
    print(*find(f"linear/cpu/{variant}/Q8_0").missing())
"""


@pytest.mark.parametrize(
    ("cpu", "dots", "matrices"),
    [
        pytest.param("max", "", "", marks=whole),
        pytest.param("neoverse-n1", "", "i8mm", marks=whole),
        ("cortex-a72", "dotprod", "dotprod i8mm"),
    ],
)
def test_cpu_features_are_detected(arm, cpu, dots, matrices):
    """Features are the emulated CPU's, not /proc/cpuinfo's; no x86 variant is chosen."""
    found = arm.program("-c", FEATURES, ARM_CPU=cpu).splitlines()
    assert found == ["aarch64/neoverse-v2", "avx2 f16c fma", dots, matrices]


OWN = """
from kernels.certificates import shares_of
from kernels.table import find
print(*(share.code.digest for share in shares_of(find("relu/cpu/generic"))))
"""


@whole
def test_cross_compiled_code_equals_native_code(arm, tmp_path):
    """The machine code is equal byte for byte, so tests run the same code on both."""
    own = arm.program("-c", OWN, cache=tmp_path).split()
    assert set(own) <= set(arm.compiled("relu/cpu/generic").values())


def assert_same_bits(arm, names: list[str], file: Path) -> None:
    """Assert equal bits; NEON kernels are compared with our portable ones."""
    arm.compiled(*names)
    bits.write(file, names)
    different = []
    for line in arm.program("-m", "conformance.support.bits", str(file)).splitlines():
        name, made = json.loads(line)
        portable = name.replace(find(name).variant, "generic")
        if made != bits.digest(portable, bits.inputs_of(name)):
            different.append(name)
    assert not different


@pytest.mark.exhaustive
def test_a_sample_of_ops_has_this_machines_bits(arm, tmp_path):
    assert_same_bits(arm, SAMPLE, tmp_path / "inputs")


@whole
def test_ops_have_this_machines_bits(arm, tmp_path):
    """Every op has equal bits by its portable kernel, and NEON's linear in every kind of format."""
    assert_same_bits(arm, [*PORTABLE, *NEON], tmp_path / "inputs")


JUDGE = """
import sys
from kernels.table import find
from kernels.trial import Request, attempt
for name in sys.argv[1:]:
    for tried in attempt(find(name), Request(name), 26):
        assert tried.verdict.passed, (name, tried.verdict.failure, tried.again)
"""


@whole
def test_the_judge_passes_neon(arm):
    arm.compiled(*NEON, *FAST)
    arm.program("-c", JUDGE, *NEON, *FAST)


ENGINE = """
import hashlib, sys
from engine import Engine, SamplingParams
with Engine.load(sys.argv[1], threads=2) as engine:
    rows = engine.logits("Once upon a time there was a small dragon who could not sleep. " * 3)
    print(hashlib.sha256(rows.tobytes()).hexdigest())
    print(engine.generate("Once upon a time", SamplingParams(max_tokens=40, seed=7)).text)
"""


@whole
@pytest.mark.parametrize("model", ["story", "story-q8_0"])
def test_the_engine_has_this_machines_bits(arm, model):
    """The logits are the same for a prompt and for single tokens, and so is the text."""
    assert arm.program("-c", ENGINE, model) == output_of(ENGINE, model, cwd=ROOT, timeout=PATIENCE)
