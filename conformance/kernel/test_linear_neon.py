"""linear in NEON, cross-compiled on any machine: its inner loops, and which CPUs run it."""

import pytest

from conformance.support.neon_loops import loop_of, loops
from kernels.cpu.isa import hwcap
from kernels.table import find

# A tile of eight tokens and eight rows, a block of 32 elements: 2048 products, of which sdot makes
# sixteen and smmla 32; and the instructions for the vector units that are allowed beside the dots:
# a little more than the docs tell, the sooner to see that sums or codes are moved about.
TILE = 8 * 8 * 32
LOOPS = {
    "neon_dotprod/Q8_0/8": ("sdot", TILE // 16, 84),
    "neon_dotprod/Q4_K/8": ("sdot", TILE // 16, 56),
    "neon_i8mm/Q4_0/8": ("smmla", TILE // 32, 142),
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return loops([*LOOPS], str(tmp_path_factory.mktemp("cache")))


@pytest.mark.parametrize("word", LOOPS)
def test_inner_loops_consist_of_dot_products(compiled, word):
    """All dot products of a tile are in one loop, by lanes of activation registers."""
    name, dots, others = LOOPS[word]
    loop = compiled[word]
    assert loop.count(name) == dots
    assert loop.vectors - dots <= others
    assert loop.count("bl", "blr") == 0
    lanes = sum(".4b[" in line for line in loop.instructions)
    assert lanes == (dots if name == "sdot" else 0)


def test_the_inner_loop_is_identified():
    """It is the block with most dot products; loads do not use vector units."""
    text = "\tsdot v0.4s, v1.16b, v2.4b[0]\n.L1:\n\tldp q0, q1, [x0]\n" + 2 * "\tsdot\tv0.4s\n"
    loop = loop_of(text + "\tadd\tx0, x0, #1\n.L2:\n\tstr\tq0, [x1]\n", "sdot")
    assert (loop.count("sdot"), loop.vectors) == (2, 2)


def test_hwcap_bits_map_to_llvm_features():
    """The examples are a Neoverse N1, and a CPU with matrix instructions but no SVE."""
    n1 = hwcap.features({hwcap.AT_HWCAP: 0x0010_FFFF, hwcap.AT_HWCAP2: 0})
    assert {name for name, has in n1.items() if has} == {
        "neon", "crc", "lse", "fullfp16", "rdm", "rcpc", "dotprod",
    }  # fmt: skip
    matrices = hwcap.features({hwcap.AT_HWCAP: 1 << 1 | 1 << 20, hwcap.AT_HWCAP2: 1 << 13})
    assert {name for name, has in matrices.items() if has} == {"neon", "dotprod", "i8mm"}


@pytest.mark.parametrize(
    ("has", "variant", "missing"),
    [
        ({"neon", "dotprod"}, "neon_dotprod", []),
        ({"neon", "dotprod"}, "neon_i8mm", ["i8mm"]),
        ({"neon"}, "neon_dotprod", ["dotprod"]),
        ({"neon", "dotprod", "i8mm"}, "avx2", ["avx2", "f16c", "fma"]),
        ({"avx2", "fma", "f16c"}, "neon_dotprod", ["dotprod", "neon"]),
    ],
)
def test_missing_cpu_features_are_named(monkeypatch, has, variant, missing):
    """Variants of other CPUs are refused with the missing features."""
    monkeypatch.setattr("kernels.kernel.cpu_features", lambda: frozenset(has))
    assert find(f"linear/cpu/{variant}/Q8_0").missing() == missing
