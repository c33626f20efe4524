"""The kernels' trials notice small changes of the kernels."""

import ast

import pytest

from conformance.mutants.hunt import all_mutants, hunt, touched
from conformance.mutants.mutate import mutants

# Of 160 mutants (seed 1), 135 were killed, 84%; of the other 25 most compute the same: work done
# twice, ends of slices that nothing reads, constants of other machines. At 84%, a sample of 8 has
# fewer than 4 killed once in 290.
SAMPLE, FLOOR = 8, 4

SOURCE = '''
"""A docstring with 1 + 1 in it."""
SIZE: int = 16

def work(x, n=3):
    total = 0.0
    for i in range(n):
        if x[i] < 2:
            total += x[i] * 0.5
    return max(total, -1)
'''


def test_a_mutant_is_one_change_that_still_parses():
    """Each mutant differs from the source, from every other, and is a program."""
    original = ast.unparse(ast.parse(SOURCE))
    changed = [m.source(SOURCE) for m in mutants("work.py", SOURCE)]
    assert len(changed) == len(set(changed)) > 15
    for text in changed:
        ast.parse(text)
        assert text != original
        lines = zip(original.splitlines(), text.splitlines(), strict=True)
        assert sum(before != after for before, after in lines) == 1


@pytest.mark.parametrize(
    "wanted", ["x[i] <= 2", "x[i + 1]", "x[i] + 0.5", "if False", "min(total", "SIZE: int = 17"]
)
def test_the_expected_changes_are_among_them(wanted):
    """Comparisons, indices, operators, branches, calls and constants are all changed."""
    assert any(wanted in m.source(SOURCE) for m in mutants("work.py", SOURCE))


def test_every_kernels_source_is_mutated_and_tried():
    """Every file that kernels are made of has mutants, and some kernel to try them on."""
    files = {mutant.file for mutant in all_mutants()}
    assert {"kernels/cpu/linear.py", "kernels/cpu/simd.py", "kernels/cpu/share.py"} <= files
    for file in files:
        assert touched(file), f"no kernel of this machine is made of {file}"
    assert touched("kernels/cpu/softmax.py") == ["softmax/cpu/generic"]


def test_most_of_a_sample_is_killed(record_property):
    """A seeded sample of mutants dies about as often as the long runs say it should."""
    outcomes = list(hunt(SAMPLE, seed=0))
    killed = [outcome for outcome in outcomes if outcome.killed]
    record_property("mutants", (len(killed), len(outcomes)))
    survivors = [str(outcome.mutant) for outcome in outcomes if not outcome.killed]
    assert len(killed) >= FLOOR, "\n".join(survivors)
