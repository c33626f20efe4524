"""The judge is judged: it must reject every wrong kernel, and accept the reference itself."""

from dataclasses import replace

import numpy as np
import pytest

from conformance.wrong.null import null_kernels
from conformance.wrong.table import PLANTED
from conformance.wrong.wrong import Wrong, computing
from kernels.judge import Candidate, judge
from kernels.table import find
from reference.quantise_activations import dequantise_activations, quantise_activations
from reference.table import OPS

NULL = tuple(null_kernels())
ROWS = [(op, kind) for op in OPS.values() for kind in op.formats or (None,)]


@pytest.mark.parametrize("wrong", [*PLANTED, *NULL], ids=str)
def test_wrong_kernels_are_rejected(wrong, record_property):
    """No planted bug and no null kernel survives its op's quick cases."""
    rejection = wrong.first_rejection()
    record_property("planted", (str(wrong), rejection is not None))
    assert rejection is not None, f"{wrong} passed every quick case"


def test_enough_bugs_are_planted():
    """At least 20 different bugs, each in the table once, and null kernels for every op."""
    assert len({(bug.op, bug.name) for bug in PLANTED}) >= 20
    assert len({str(bug) for bug in PLANTED}) == len(PLANTED)
    assert {wrong.op for wrong in NULL} == set(OPS)


@pytest.mark.parametrize(("op", "format"), ROWS)
def test_the_reference_is_accepted(op, format):
    """The reference, rounded to the outputs' types, passes: what the judge rejects is the bug."""
    honest = Wrong(op.name, "not-at-all", computing(op.reference), format)
    rejection = honest.first_rejection()
    assert rejection is None, rejection.failure


@pytest.mark.parametrize("format", ["Q8_0", "Q4_0"])
def test_quantised_activations_are_accepted_only_where_declared(format):
    """The product of int8 activations passes as what it is, not as the float product."""

    def product(x, weight, format):
        q, scale, _ = quantise_activations(x)
        return OPS["linear"].reference(dequantise_activations(q, scale), weight, format)

    declared = Wrong("linear", "int8", computing(product), format, "int8")
    assert declared.first_rejection() is None
    assert Wrong("linear", "int8", computing(product), format).first_rejection() is not None


def test_the_judge_reports_where_and_how_far():
    """A rejection names the element, both values, the error, its bound and how many are wrong."""

    def off_by_one(x, y):
        out = x.astype(np.float64) + y
        out[1, 2] += 1
        return out

    case = OPS["add"].case({"tokens": 2, "width": 31}, "zeros")
    verdict = judge(Wrong("add", "off", computing(off_by_one)).candidate(), case)
    assert verdict.failure.startswith("out[1, 2] is 1, expected 0: off by 1, bound 1.18e-38")
    assert verdict.failure.endswith("1 of 62 wrong")
    assert verdict.worst > 1


def test_a_thread_that_strays_from_its_tokens_is_found() -> None:
    """A kernel that shares rows and says that it shares tokens is right on one thread and on three,
    and rejected: the engine would leave out a barrier that it needs."""
    kernel = find("linear/cpu/generic/F32")
    honest = Candidate.of(kernel)
    case = kernel.spec.case({"tokens": 7, "hidden": 64, "out": 96}, format="F32")
    assert judge(honest, case).passed
    assert "tokens" in judge(replace(honest, splits="tokens"), case).failure
