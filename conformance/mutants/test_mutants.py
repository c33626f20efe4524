"""The kernels' trials detect small changes of the kernels."""

import ast
from collections.abc import Callable
from dataclasses import replace
from itertools import chain

import pytest

from conformance.mutants.equivalent import EQUIVALENT, UNSEEN
from conformance.mutants.hunt import Outcome, Server, all_mutants, chosen, hunt
from conformance.mutants.mutate import beyond, mutants
from conformance.support.rooms import ROOT, Copy
from kernels.table import KERNELS, find
from reference.formats import FORMATS

# Of 300 mutants (seed 0) nine in ten are killed; most of the others compute the same. At 86%, a
# sample of 8 has fewer than 4 killed once in 480.
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
    """Each mutant differs from the source and from every other, and is a valid program."""
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


def test_mutants_beyond_a_size():
    """Some apply only where a size exceeds those of cases: one for each size that the function
    names before the change, and for expressions only."""
    source = "def work(x):\n    tokens, hidden = x.shape\n    return x[0] * 2\n"
    tree = ast.parse(source)
    found = [b for m in mutants("work.py", source) for b in beyond(m, tree, {"hidden": 4096})]
    texts = [b.source(source) for b in found]
    assert "x[0] + 2 if hidden > 4096 else x[0] * 2" in "".join(texts)
    assert {b.axis for b in found} == {"hidden"}
    assert all(ast.parse(text) for text in texts)


def test_samples_are_reproducible_and_have_both_kinds():
    found = chosen(12, seed=5)
    assert found == chosen(12, seed=5)
    assert len(found) == 12
    assert {bool(mutant.axis) for mutant in found} == {True, False}


def test_equivalent_mutants_are_mutants():
    """The entries of the table still exist in the sources."""
    known = all_mutants(kernels=KERNELS)
    tables = EQUIVALENT.values(), UNSEEN.values()
    for place in chain.from_iterable(chain(*tables)):
        assert any(replace(place, axis="").has(mutant) for mutant in known), place


READERS = {
    "embedding", "linear", "linear_experts", "attention", "attention_received", "keydiff", "knorm",
    "dequantise", "sparse_axpy",
}  # fmt: skip
LINEARS = {"linear", "linear_experts", "sparse_linear"}
WRITERS = {"quantise", "quantise_weighted", "kv_write"}
WIDE = "arithmetic", "activations", "gated_activations", "experts"  # what counts in lanes


def in_lanes() -> set[str]:
    """Ops of vector kernels, and how to list all kernels."""
    modules = {f"kernels.cpu.{name}" for name in WIDE}
    wide = {kernel.op for kernel in KERNELS if kernel.share.function.__module__ in modules}
    return WRITERS | {"dequantise"} | wide


# An edit of a file, the ops of the kernels that it reaches, formats that are among theirs, and
# formats that are not.
Ops = set[str] | Callable[[], set[str]]
CHANGES: dict[str, tuple[tuple[str, str, str], Ops, set[str], set[str]]] = {
    "of one format": (
        ("formats/decoding", "j, 4, 16) - 8", "j, 4, 16) - 7"),
        READERS, {"Q4_0"}, set(FORMATS) - {"Q4_0"},
    ),
    "in what builders close over": (
        ("linear/linear_avx2", "else -layout", "else layout"), LINEARS, {"Q4_0", "Q6_K"}, {"Q4_1"},
    ),
    "in an overload": (
        ("formats/scale_search", "becomes(value * each)", "becomes(value)"),
        WRITERS, {"Q4_0", "Q6_K"}, {"Q4_K"},
    ),
    "an operator": (
        ("isa/lanes", "alike(b, a), b)", "b, b)"),
        in_lanes, {"Q4_0", "Q6_K"}, set(),
    ),
    "no code": (("softmax", "from numba", "# not code\nfrom numba"), set(), set(), set(FORMATS)),
}  # fmt: skip


@pytest.fixture(scope="module")
def parts_of():
    """What kernels consist of, by name, in the rooms of a folder."""
    with Server(ROOT) as server:
        yield lambda folder: server.ask(folder=str(folder))["parts"]


@pytest.fixture(scope="module")
def parts(parts_of):
    return parts_of(ROOT)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("edit", "ops", "formats", "others"), CHANGES.values(), ids=CHANGES)
def test_a_change_affects_the_kernels_that_use_it(
    tmp_path, parts, parts_of, edit, ops, formats, others
):
    """Only the kernels that a change reaches are tried on a mutant."""
    copy, (file, old, new) = Copy(tmp_path), edit
    copy.edit(f"kernels/cpu/{file}.py", old, new)
    found = [find(n) for n, (digest, *_) in parts_of(tmp_path).items() if digest != parts[n][0]]
    assert {kernel.op for kernel in found} == (ops() if callable(ops) else ops)
    module = f"kernels.cpu.{file.replace('/', '.')}"
    assert all(module in parts[kernel.name][2] for kernel in found)
    seen = {kernel.format for kernel in found}
    assert formats <= seen
    assert not seen & others


@pytest.mark.exhaustive
def test_equivalent_mutants_are_identified(tmp_path):
    """Kernels are compared by machine code, and by what their rows compute."""
    names = "softmax/cpu/generic", "linear_w8a8/cpu/scalar"
    copy = Copy(tmp_path)
    with Server(copy.folder) as server:

        def runs() -> list[str]:
            found = server.ask(folder=str(copy.folder), originals=names)["originals"]
            return [found[name] for name in names]

        softmax, linear = runs()
        copy.edit("kernels/cpu/softmax.py", "range(0, width, 16)", "range(0, width + 0, 16)")
        copy.edit("kernels/cpu/schemes/linear_w8a8.py", "// 255**2", "// 256**2")
        same, other_row = runs()
        copy.edit("kernels/cpu/softmax.py", "range(0, width + 0, 16)", "range(0, width + 1, 16)")
        other_code, _ = runs()
    assert same == softmax != other_code
    assert other_row != linear


@pytest.mark.exhaustive
def test_most_of_a_sample_is_killed(record_property):
    """A seeded sample of mutants is killed about as often as in the long runs.

    A hunt that has found enough is stopped, and its processes with it.
    """
    trials = hunt(SAMPLE, seed=0)
    outcomes: list[Outcome] = []
    while sum(outcome.killed for outcome in outcomes) < FLOOR and (found := next(trials, None)):
        outcomes.append(found)
    survivors = [str(outcome.mutant) for outcome in outcomes if not outcome.killed]
    record_property("mutants", (len(outcomes) - len(survivors), len(outcomes)))
    assert len(outcomes) - len(survivors) == FLOOR, "\n".join(survivors)
    trials.close()
    assert next(trials, None) is None
