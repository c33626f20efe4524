"""Errors in an op's row are reported for the row, not blamed on a kernel."""

from dataclasses import replace

import numpy as np
import pytest

from kernels.judge import judge
from kernels.shapes import ShapeError
from kernels.table import find
from kernels.trial import held
from reference.op import Law
from reference.table import OPS

RELU = OPS["relu"]
CASE = RELU.case({"tokens": 3, "width": 40})


def test_invalid_signatures_are_refused():
    for broken in "x: f32[tokens, width]", "x f32[tokens width]", "x: f32[tokens width],":
        with pytest.raises(ValueError, match="arguments read"):
            replace(RELU, signature=f"{broken} -> out: f32[tokens width]")


def test_unknown_policies_are_refused():
    with pytest.raises(ValueError, match="relu: nan is one of element, token, domain"):
        replace(RELU, nan="tokens")


def without_first_column(x):
    return np.ascontiguousarray(x[:, 1:])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"make": lambda case: {"y": 1}}, "no argument 'y'"),
        ({"make": lambda case: {"x": RELU.make(case)["x"].astype(float)}}, "x is float32"),
        (
            {"make": lambda case: {"x": without_first_column(RELU.make(case)["x"])}},
            "make gives width = 39",
        ),
        ({"reference": without_first_column}, r"its reference gives \(3, 39\) for out"),
        ({"reference": lambda x: (x, x)}, "its reference gives 2 of out"),
        ({"bound": lambda inputs, expected: {}}, "its bound gives nothing for out"),
    ],
)
def test_mismatched_rows_are_reported(monkeypatch, changes, complaint):
    monkeypatch.setitem(OPS, "relu", replace(RELU, **changes))
    with pytest.raises(ValueError, match=f"relu.*{complaint}"):
        judge(find("relu/cpu/generic"), CASE)


def test_a_law_without_valid_arguments_fails():
    law = Law("doubles", lambda apply, case: str(apply({"x": np.ones((3, 40))})))
    with pytest.raises(ShapeError, match="x is float32"):
        held(find("relu/cpu/generic"), law, CASE)
