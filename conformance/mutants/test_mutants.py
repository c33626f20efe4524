"""The kernels' trials notice small changes of the kernels."""

import ast
from dataclasses import replace
from itertools import chain

import pytest

from conformance.mutants.attempt import TRIED, picked
from conformance.mutants.equivalent import EQUIVALENT, UNSEEN
from conformance.mutants.hunt import all_mutants, changed, chosen, hunt
from conformance.mutants.mutate import Mutant, beyond, mutants
from conformance.support.rooms import ROOT, Copy
from kernels.table import KERNELS, find
from reference.formats import FORMATS

# Of 300 mutants (seed 0) 258 were killed, 86%; 30 of the other 42 compute the same. At 86%,
# a sample of 8 has fewer than 4 killed once in 480.
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


def test_a_mutant_may_hold_beyond_a_size_alone():
    """Of each size that its function names before the change, and of expressions only."""
    source = "def work(x):\n    tokens, hidden = x.shape\n    return x[0] * 2\n"
    tree = ast.parse(source)
    found = [b for m in mutants("work.py", source) for b in beyond(m, tree, {"hidden": 4096})]
    texts = [b.source(source) for b in found]
    assert "x[0] + 2 if hidden > 4096 else x[0] * 2" in "".join(texts)
    assert {b.axis for b in found} == {"hidden"}
    assert all(ast.parse(text) for text in texts)


def test_a_choice_has_both_kinds_and_is_the_same_again():
    found = chosen(12, seed=5)
    assert found == chosen(12, seed=5)
    assert len(found) == 12
    assert {bool(mutant.axis) for mutant in found} == {True, False}


def test_equivalent_mutants_are_mutants():
    """What the table names is in the sources still."""
    known = all_mutants(kernels=KERNELS)
    tables = EQUIVALENT.values(), UNSEEN.values()
    for place in chain.from_iterable(chain(*tables)):
        assert any(replace(place, axis="").has(mutant) for mutant in known), place


def test_a_hunt_can_be_stopped():
    """Its processes end with it."""
    trials = hunt(3, seed=1, workers=1)
    assert isinstance(next(trials).mutant, Mutant)
    trials.close()
    assert next(trials, None) is None


def test_every_kernels_source_is_mutated():
    """Every file that kernels are made of has mutants."""
    files = {mutant.file for mutant in all_mutants()}
    assert {"kernels/cpu/linear.py", "kernels/cpu/simd.py", "kernels/cpu/share.py"} <= files


READERS = {"embedding", "linear", "attention", "dequantise", "sparse_axpy"}
LINEARS = {"linear", "sparse_linear"}
WRITERS = {"quantise", "quantise_weighted", "kv_write"}


@pytest.mark.parametrize(
    ("file", "old", "new", "ops", "formats", "not_formats"),
    [
        ("formats", "j, 4, 16) - 8", "j, 4, 16) - 7", READERS, {"Q4_0"}, set(FORMATS) - {"Q4_0"}),
        ("linear_int8", "else -layout", "else layout", LINEARS, {"Q4_0", "Q6_K"}, {"Q4_1"}),
        ("fit", "becomes(value * each)", "becomes(value)", WRITERS, {"Q4_0", "Q6_K"}, {"Q4_K"}),
        ("lanes", "alike(b, a), b)", "b, b)", WRITERS | {"dequantise"}, {"Q4_0", "Q6_K"}, set()),
        ("softmax", "from numba", "# not code\nfrom numba", set(), set(), set(FORMATS)),
    ],
    ids=[
        "of one format",
        "in what builders close over",
        "in an overload",
        "an operator",
        "no code",
    ],
)
def test_a_change_is_seen_in_the_kernels_it_reaches(
    tmp_path, file, old, new, ops, formats, not_formats
):
    """And in no others: only those are tried on a mutant."""
    copy = Copy(tmp_path)
    copy.edit(f"kernels/cpu/{file}.py", old, new)
    found = [find(name) for name in changed(ROOT, copy.folder)]
    assert {kernel.op for kernel in found} == ops
    seen = {kernel.format for kernel in found}
    assert formats <= seen
    assert not seen & not_formats


def test_kernels_picked_are_unlike_one_another():
    """Of many, one of each variant first, and in as many formats."""
    kernels = [k for k in KERNELS if k.op == "linear" and not k.missing()]
    found = picked(kernels, {kernel.name: 1 for kernel in kernels})
    variants = {kernel.variant for kernel in kernels}
    assert len(found) == TRIED
    assert len({kernel.variant for kernel in found}) == min(TRIED, len(variants))
    assert len({kernel.format for kernel in found}) == TRIED
    assert picked(kernels[:2], {kernel.name: 1 for kernel in kernels}) == kernels[:2]


def test_most_of_a_sample_is_killed(record_property):
    """A seeded sample of mutants dies about as often as the long runs say it should."""
    outcomes = list(hunt(SAMPLE, seed=0))
    killed = [outcome for outcome in outcomes if outcome.killed]
    record_property("mutants", (len(killed), len(outcomes)))
    survivors = [str(outcome.mutant) for outcome in outcomes if not outcome.killed]
    assert len(outcomes) == SAMPLE
    assert len(killed) >= FLOOR, "\n".join(survivors)
