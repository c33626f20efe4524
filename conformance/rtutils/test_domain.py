"""A certificate is valid for the sizes that were tried; a node beyond them is tried at its own."""

import json

import numpy as np
import pytest

from conformance.support.rooms import Copy
from engine.compile.plan import spec_of
from engine.graph import Graph, Value
from engine.quantise.values import Formats, decoding, encoding
from kernels.certificates import Certificate, Store
from kernels.certify import Trials
from kernels.cpu.runtime.team import Team
from kernels.dispatch import Dispatcher, KernelSpec
from kernels.domain import beyond, covers, extent, fixed, node_cases
from kernels.table import find
from reference.table import OPS

NORM, LINEAR = OPS["rms_norm"], OPS["linear"]
AXES = {"tokens": (0, 513), "hidden": (1, 14336), "out": (1, 65600)}


@pytest.mark.parametrize(
    ("shape", "shapes", "covered"),
    [
        ({"hidden": 64, "out": 100, "tokens": 512}, [], True),
        ({"hidden": 64, "out": 100, "tokens": 514}, [], False),
        ({"hidden": 2048, "out": 100}, [], False),
        ({"hidden": 2048, "out": 5632}, [{"hidden": 2048, "out": 5632, "tokens": 512}], True),
        ({"hidden": 2048, "out": 5632}, [{"hidden": 2048, "out": 256}], False),
        ({"hidden": 2048, "out": 5632, "tokens": 600}, [{"hidden": 2048, "out": 5632}], False),
    ],
    ids=["small", "many tokens", "large", "tried", "another", "tried, many tokens"],
)
def test_covered_sizes(shape, shapes, covered):
    """Small sizes, and combinations that were tried; up to as many tokens as were tried at once."""
    assert covers(LINEAR, AXES, shapes, shape) == covered


@pytest.mark.parametrize("op", OPS.values(), ids=OPS.keys())
def test_cases_of_a_node_cover_it(op):
    """For any op: cases have the sizes that a model fixes, and reach the largest varying ones."""
    kind = op.formats[0] if op.formats else None
    cases = op.quick_cases(kind)
    twice = {axis: 2 * max(sizes) for axis, sizes in op.axes.items() if axis != "bits"}
    shape = dict(op.case(twice, op.values[0], 0, kind).shape)
    found = node_cases(op, cases, shape, 5)
    assert not beyond(op, extent([*cases, *found]), shape)
    own = fixed(op, shape)
    assert any(own.items() <= case.shape.items() for case in found)


def test_a_large_weight_is_judged_by_some_rows():
    """All others are zero pages; the first and the last are included."""
    case = LINEAR.case({"tokens": 1, "hidden": 2048, "out": 65600}, format="F32")
    rows = case.sampled(65600, 2048)
    assert {0, 65599} <= set(rows.tolist())
    assert len(rows) <= 64
    weight = LINEAR.make(case)["weight"]
    assert weight[rows].any(axis=1).all()
    assert not weight[1:100][~weight[1:100].any(axis=1)].any()


def test_a_node_beyond_is_tried_once(tmp_path):
    """The certificate is extended by the node's shape, once."""
    store, needs = (
        Store(tmp_path / "certificates.jsonl"),
        [KernelSpec("add", None, (("width", 5632),))],
    )
    told: list[Certificate] = []

    def came(trials: Trials) -> None:
        told.extend(filter(None, [trials.certificate]))

    for _ in range(2):
        Dispatcher(store, limits={"tokens": 700}).choose(needs, came)
    (first,) = told
    assert first.axes["tokens"][1] >= 700
    assert first.shapes == ({"tokens": 700, "width": 5632},)
    more = [KernelSpec("add", None, (("width", 11008),))]
    Dispatcher(store, limits={"tokens": 700}).choose(more, came)
    assert told[1].cases < 10 < first.cases  # what is known is not tried again
    kept = store.get(find("add/cpu/generic"))
    assert [shape["width"] for shape in kept.shapes] == [11008, 5632]


def test_rows_per_head_are_tried_as_tokens(tmp_path):
    """A node with a row for each head of each token is tried with as many."""
    store = Store(tmp_path / "certificates.jsonl")
    x = Value("x", "input", "f32", ("tokens*40", 96))
    weight = Value("weight", "weight", "f32", (96,))
    graph = Graph()
    graph("rms_norm", "heads", x=x, weight=weight, eps=1e-6)
    Dispatcher(store, limits={"tokens": 64}).choose([spec_of(node) for node in graph.nodes])
    assert store.get(find("rms_norm/cpu/generic")).axes["tokens"][1] >= 64 * 40


def test_quantised_rows_are_tried_at_their_length():
    """Rows of a model's file belong to no node, but are as long."""
    with Team(1) as team:
        formats = Formats(team, [encoding("Q8_0", 4096), decoding("Q8_0", 4096)])
        assert formats.encoded(np.zeros((1, 4096), np.float32), "Q8_0").size == 4096 // 32 * 34
    for op in ("quantise", "dequantise"):
        assert {"hidden": 4096} in Store().get(find(f"{op}/cpu/generic/Q8_0")).shapes


WRONG_AT = """
import json, sys
from kernels.certificates import Store
from kernels.dispatch import Dispatcher, KernelSpec
dispatcher = Dispatcher(Store(), limits={"tokens": 512})
need = KernelSpec("rms_norm", None, (("hidden", int(sys.argv[1])),))
print(json.dumps([dispatcher.choose([need])[need].variant, dispatcher.notes]))
"""


@pytest.mark.parametrize(
    ("edit", "hidden", "said"),
    [
        ("x[t % 9]", 64, "--shape tokens="),
        ("x[t if hidden != 4096 else 0]", 4096, "hidden=4096"),
        ("x[t if eps > 5e-7 else 0]", 64, ""),
    ],
    ids=["from token 9 on", "at one model's size", "below an eps"],
)
def test_a_kernel_that_fails_at_a_models_size_is_replaced(tmp_path, edit, hidden, said):
    """The next variant is used, and the note has the failing case."""
    copy = Copy(tmp_path)
    row = "row, target = x[t], out[t]"
    copy.edit("kernels/cpu/rms_norm.py", row, row.replace("x[t]", edit))
    variant, notes = json.loads(copy.python(WRONG_AT, str(hidden)))
    assert variant == "scalar"
    refused = "rms_norm/cpu/generic failed its trial and is not used: out"
    # which of the two a secret case shows first is chance
    assert notes[0].startswith((f"{refused}[", f"{refused} is not what its"))
    assert said in notes[0]
