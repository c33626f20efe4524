"""The judge rejects every planted bug and accepts right kernels."""

import os
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from conformance.bugs.bug import Bug, Edit
from conformance.bugs.general import NULL
from conformance.bugs.laws import breaker
from conformance.bugs.shares import C_FOLDER, COMPILER, CShare, storing
from conformance.bugs.table import EVERY, PLANTED
from conformance.bugs.trial import Trials
from conformance.cuda.emulator import compiler
from conformance.support.depth import DEEP
from kernels.certificates import construction_of
from kernels.cpu.runtime.float_control import SIGNATURE, X86, read_control, set_float_control
from kernels.cpu.runtime.share import arguments, pack_words, share
from kernels.cpu.runtime.team import Program
from kernels.cuda.runtime.launch import FOLDER
from kernels.errors import KernelError
from kernels.judge import judge
from kernels.kernel import Kernel
from kernels.runs import MODES, Setup, _team
from kernels.table import find, variants
from kernels.trial import demanded
from reference.op import Law
from reference.quantise_activations import dequantise_activations, quantise_activations
from reference.table import OPS

ADD = OPS["add"].signature
ENDLESS = {"search-too-far"}
ORDER = ("construction", "cases", "shape")
LANGUAGES = ("numba", "cuda", "c", "python")  # slowest to compile and try first
SLOW = ("numba", "cuda")  # our own kernels, each of which takes seconds to compile
ROWS = [
    (op, kind) for op in OPS.values() for kind in dict.fromkeys(op.formats[::24] or (None,))
]  # each op's first format, and another one if it has all
RIGHT = sorted({(bug.op, bug.format or "") for bug in PLANTED if bug.language == "c"})


def can_compile(bug: Bug) -> bool:
    return bool({"c": COMPILER, "cuda": compiler()}.get(bug.language, True))


def one_of_each() -> list[Bug]:
    """One of the bugs that differ only in language or format: in the fastest language that this
    machine can compile, in a format chosen by name."""
    drawn = sorted(EVERY, key=lambda bug: sha256(str(bug).encode()).digest())
    drawn.sort(key=lambda bug: (can_compile(bug), LANGUAGES.index(bug.language)))
    return [*{(bug.op, bug.variant, bug.name): bug for bug in drawn}.values()]


@pytest.fixture(scope="module")
def trials():
    with Trials() as started:
        yield started


@pytest.mark.parametrize(
    "bug",
    [
        pytest.param(bug, marks=[pytest.mark.exhaustive] * (bug.language in SLOW), id=str(bug))
        for bug in (EVERY if DEEP else one_of_each())
    ],
)
def test_planted_bugs_are_rejected(bug, trials, record_property):
    """The expected stage rejects it, or an earlier one; deep runs try all languages and formats."""
    if not can_compile(bug):
        pytest.skip(f"no compiler for {bug.language}")
    outcome = trials.outcome(bug)
    record_property("planted", (str(bug), bool(outcome.stage)))
    assert outcome.stage, f"{bug} survived"
    assert "SIGXCPU" not in outcome.failure or bug.name in ENDLESS, f"{bug} took too long"
    assert ORDER.index(outcome.stage) <= ORDER.index(bug.seen), outcome.failure


def test_enough_bugs_are_planted():
    """Beside null kernels there are at least 150, with distinct names, for every op."""
    assert len({(bug.op, bug.name) for bug in PLANTED}) >= 150
    assert len({str(bug) for bug in EVERY}) == len(EVERY)
    assert {bug.op for bug in NULL} == set(OPS)


def test_what_an_edit_replaces_stands_there_once():
    """The old text of every edit occurs exactly once, also for bugs that deep runs try."""
    assert all(bug.edited for bug in PLANTED if isinstance(bug.does, Edit))


def test_every_cuda_source_is_edited():
    """Sources are found by their file names, which are distinct."""
    files = [path.name for path in FOLDER.rglob("*.cu*")]
    assert len({*files}) == len(files)
    assert {*files} == {bug.does.file for bug in PLANTED if bug.language == "cuda"}


def test_every_kernel_in_c_is_edited():
    files = {path.stem for path in C_FOLDER.glob("*.c")}
    assert files == {bug.op for bug in PLANTED if bug.language == "c"}


@pytest.mark.skipif(not COMPILER, reason="no C compiler")
@pytest.mark.parametrize(("op", "format"), RIGHT)
def test_unedited_kernels_in_c_pass(op, format, tmp_path):
    """Unedited kernels in C pass, so it is the bug that is rejected."""
    source = (C_FOLDER / f"{op}.c").read_text()
    share = CShare(f"{op}/c", op, format or None, source, tmp_path)
    in_place = variants(op, format or None)[0].in_place
    right = Kernel(op, "c", share, format or None, in_place=in_place)
    assert not construction_of(right)
    assert not demanded(right, secret=1).failure


def memoised(reference: Callable[..., Any]) -> Callable[..., Any]:
    """A cached function, for the judge's repeated calls with the same arguments."""
    found: dict[str, Any] = {}

    def known(**inputs: Any) -> Any:
        values = [np.asarray(value) for value in inputs.values()]
        told = b"".join(str((v.dtype, v.shape)).encode() + v.tobytes() for v in values)
        key = sha256(told).hexdigest()
        if key not in found:
            found.clear()
            found[key] = reference(**inputs)
        return found[key]

    return known


@pytest.mark.parametrize(("op", "format"), ROWS)
def test_the_reference_is_accepted(op, format, tmp_path):
    """The reference rounded to the outputs' types passes."""
    honest = Bug(op.name, "python", "not-at-all", storing(memoised(op.reference)), format)
    failure = demanded(honest.kernel(tmp_path), secret=1).failure
    assert not failure


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0"])
def test_quantised_activations_are_accepted_only_where_declared(format, tmp_path):
    """The product of int8 activations passes if declared as such, not as the float product."""

    def product(x, weight, format):
        q, scale, _ = quantise_activations(x)
        return OPS["linear"].reference(dequantise_activations(q, scale), weight, format)

    declared = Bug("linear", "python", "a", storing(product), format, activations="int8")
    secret = Bug("linear", "python", "b", storing(product), format)
    assert not demanded(declared.kernel(tmp_path), secret=1).failure
    assert demanded(secret.kernel(tmp_path), secret=1).failure


def test_the_judge_reports_where_and_how_far(tmp_path):
    """A rejection names the element, both values, the error, its bound and how many are wrong."""

    def off_by_one(x, y):
        out = x.astype(np.float64) + y
        out[1, 2] += 1
        return out

    case = OPS["add"].case({"tokens": 2, "width": 31}, "zeros")
    verdict = judge(Bug("add", "python", "off", storing(off_by_one)).kernel(tmp_path), case)
    assert verdict.failure.startswith("out[1, 2] is 1, expected 0: off by 1, bound 1.18e-38")
    assert verdict.failure.endswith("1 of 62 wrong")
    assert verdict.worst > 1


@pytest.mark.parametrize(("values", "elsewhere"), [("nan", 0), ("normal", 0), ("normal", 1)])
def test_rows_of_zeros_give_zeros_or_nan(values, elsewhere, tmp_path):
    """Of a large weight's rows, most of which are zeros; another number there is wrong."""

    def product(x, weight, format):
        out = x.astype(np.float64) @ weight.view(np.float32).astype(np.float64).T
        out[:, ~weight.any(axis=1)] += elsewhere
        return out

    case = OPS["linear"].case({"tokens": 2, "hidden": 6944, "out": 236}, values, 14, "F32")
    verdict = judge(
        Bug("linear", "python", "zeros", storing(product), "F32").kernel(tmp_path), case
    )
    assert verdict.failure == ("out: rows of zeros gave other than zeros" if elsewhere else "")


def test_threads_outside_of_their_tokens_are_detected():
    """A kernel that divides rows but declares tokens gives right results for any number of threads,
    and is rejected: the engine would omit a barrier that it needs."""
    kernel = find("linear/cpu/generic/F32")
    case = kernel.spec.case({"tokens": 7, "hidden": 64, "out": 96}, format="F32")
    assert judge(kernel, case).passed
    assert "tokens" in judge(replace(kernel, splits="tokens"), case).failure


@share(ADD)
def truncates(args, thread, n_threads):
    """Rounds toward zero and flushes subnormal numbers from now on; raises if there are tokens."""
    x, _, _ = arguments(args, ADD)
    set_float_control(np.uint32(0xFFC0))
    if len(x):
        raise ArithmeticError("no")


@pytest.mark.skipif(not X86, reason="only x86-64's register is read")
@pytest.mark.parametrize(("tokens", "failure"), [(0, MODES), (2, "raised ArithmeticError")])
def test_kept_threads_have_their_modes_again(tokens, failure):
    """The judge keeps its threads: a kernel that changes how they round, raising or not, leaves
    nothing of that to the next kernel."""

    def modes():
        control = np.zeros(3, np.uint32)
        words = pack_words(SIGNATURE, {"control": control})
        _team(3, os.getpid()).run(Program([(read_control, words)], by_all=True))
        return control.tolist()

    kernel = Kernel("add", "truncates", truncates)
    case = kernel.spec.case({"tokens": tokens, "width": 31})
    setup = Setup(kernel, case, kernel.spec.make(case), 0, np.random.default_rng(0))
    before = modes()
    with pytest.raises(KernelError, match=failure):
        setup.run_team(3)
    assert modes() == before


LAWS = [pytest.param(op, law, id=f"{op.name}-{law.name}") for op in OPS.values() for law in op.laws]


@pytest.mark.parametrize(("op", "law"), LAWS)
def test_every_law_can_fail(op, law):
    """A planted bug of the op breaks the law."""
    assert breaker(op, law), f"no planted bug breaks the law {law.name} of {op.name}"


def test_vacuous_laws_are_detected():
    """A law that is always true has no breaker."""
    assert not breaker(OPS["add"], Law("nothing", lambda *_: ""))
