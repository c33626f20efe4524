"""Knobs: any setting gives the same bits; measured settings are stored and reused as long as the
kernel is unchanged."""

import json
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.depth import DEEP
from kernels import tuning
from kernels.cache import ready
from kernels.call import stages
from kernels.certificates import code_of
from kernels.cpu.isa.amx import request
from kernels.cpu.linear import linear_amx, linear_amx_bf16
from kernels.cpu.linear.linear import KNOBS
from kernels.kernel import Kernel
from kernels.provenance import machine
from kernels.shapes import empty_outputs
from kernels.table import KERNELS, find
from kernels.tuning import Tuned, chosen, current, keep, key_of, load, starting

HAVE_KNOBS = [kernel for kernel in KERNELS if kernel.knobs]
FAMILIES = json.loads(tuning.files("kernels").joinpath(tuning.STARTING).read_text())
SHAPES = {
    "tokens": (1, 2, 3, 5, 17, 33, 70),
    "out": (1, 16, 31, 130),
    "hidden": (256, 512, 2304),
    "neurons": (16, 33, 300),
}
QUICK_FORMATS = ("F16", "Q4_0", "Q6_K")


def tunable_kernels() -> list[Kernel]:
    """Kernels with knobs on this machine; missing AMX tiles are emulated."""
    found = [k for k in HAVE_KNOBS if not k.missing() and (DEEP or k.format in QUICK_FORMATS)]
    if not request():
        for name, share in linear_amx.EMULATED_SHARES.items():
            if DEEP or name == "Q4_0":
                found.append(replace(find(f"linear/cpu/amx/{name}"), share=share))
        bf16 = find("linear/cpu/amx_bf16/F16")
        found.append(replace(bf16, share=linear_amx_bf16.EMULATED_SHARES["F16"]))
    return found


def output_with(kernel: Kernel, sizes: dict[str, int], values: dict[str, int]) -> bytes:
    """A case's output, with two threads and these values of its knobs."""
    spec = kernel.spec
    case = spec.case({a: n for a, n in sizes.items() if a in spec.axes}, format=kernel.format)
    outputs = empty_outputs(spec, case.shape, kernel.format)
    outputs["out"].fill(np.nan)
    for share, block, _ in stages(kernel, dict(spec.make(case)), outputs, tuning=values):
        for thread in range(2):
            share(block, thread, 2)
    return outputs["out"].tobytes()


@pytest.mark.parametrize("kernel", tunable_kernels(), ids=lambda kernel: kernel.name)
@given(data=st.data())
def test_any_tuning_gives_the_same_bits(kernel, data):
    """The law of knobs, over all of their values."""
    values = {knob.name: data.draw(st.sampled_from(knob.values)) for knob in kernel.knobs}
    sizes = {axis: data.draw(st.sampled_from(sizes)) for axis, sizes in SHAPES.items()}
    assert output_with(kernel, sizes, values) == output_with(kernel, sizes, {})


CROSSOVERS = dict.fromkeys(
    knob for kernel in HAVE_KNOBS for knob in kernel.knobs if knob.crossover and knob.tokens
)


@pytest.mark.parametrize("knob", CROSSOVERS, ids=lambda knob: knob.name)
def test_measured_steps_distinguish_crossover_values(knob):
    """The measured numbers of tokens distinguish any two values of a crossover."""
    for tokens in knob.tokens:
        assert sorted(chain(*knob.alike(tokens))) == sorted(knob.values)
        assert all(len({0 < v <= tokens for v in same}) == 1 for same in knob.alike(tokens))
    ways = [tuple(0 < value <= tokens for tokens in knob.tokens) for value in knob.values]
    assert len(set(ways)) == len(knob.values)


@pytest.mark.parametrize("kernel", HAVE_KNOBS, ids=lambda kernel: kernel.name)
def test_starting_values_are_tried_values(kernel):
    """Trials try the values of every family of CPUs, and each knob's default."""
    for features in ([], *(family["features"] for family in FAMILIES)):
        values = starting(kernel, frozenset(features))
        assert list(values) == [knob.name for knob in kernel.knobs]
        assert all(values[knob.name] in knob.values for knob in kernel.knobs)
    assert all(knob.default in knob.values for knob in kernel.knobs)


def test_starting_values_name_existing_kernels_and_knobs():
    """Every row names kernels and knobs that exist, and features by LLVM's names."""
    names = {part for k in KERNELS for part in (k.name, k.name.rpartition("/")[0], f"{k.op}/cpu")}
    knobs = {knob.name for kernel in KERNELS for knob in kernel.knobs}
    for family in FAMILIES:
        assert set(family) == {"family", "features", "measured", "values"}
        assert set(family["values"]) <= names
        assert {name for values in family["values"].values() for name in values} <= knobs


def test_the_longest_matching_prefix_selects_starting_values(monkeypatch):
    """Then the first family whose features the CPU has counts, otherwise the defaults."""
    rows = [
        {"features": ["a", "b"], "values": {"linear/cpu": {"near": 0}}},
        {
            "features": ["a"],
            "values": {
                "linear/cpu": {"ahead": 512, "near": 0, "none of its": 3, "ahead_many": 7},
                "linear/cpu/generic": {"ahead": 1024},
                "linear/cpu/generic/F16": {"ahead": 4096},
                "linear/cpu/gen": {"ahead": 8192},
            },
        },
    ]
    monkeypatch.setattr(tuning, "_starting", lambda: rows)
    kernel, defaults = find("linear/cpu/generic/F16"), {knob.name: knob.default for knob in KNOBS}
    assert starting(kernel, frozenset()) == defaults
    assert starting(kernel, frozenset("a")) == defaults | {"ahead": 4096, "near": 0}
    assert starting(kernel, frozenset("ab")) == defaults | {"near": 0}
    other = find("linear/cpu/generic/F32")
    assert starting(other, frozenset("a"))["ahead"] == 1024


SHAPE = {"hidden": 256, "out": 64}


def a_tuning(kernel: Kernel, **changes: object) -> Tuned:
    values = {knob.name: knob.values[-1] for knob in kernel.knobs}
    found = Tuned(*key_of(kernel, SHAPE, 2), values, 1.2, (1.1, 1.3), "2026-11-23T00:00:00+00:00")
    return replace(found, **changes)


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    kernel = find("linear/cpu/generic/F16")
    code_of(kernel)  # from the folder of all tests
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path / "cache"))
    return kernel


def test_measured_settings_are_stored(own_cache):
    """The last line of a key counts; malformed lines are ignored."""
    first, last = a_tuning(own_cache, gain=1.1), a_tuning(own_cache, gain=1.5)
    keep([first])
    keep([last])
    path = ready() / tuning.KEPT
    path.write_bytes(path.read_bytes() + b'\xff\xfe not a line\n{"kernel": 3}\n')
    assert load() == {last.key: replace(last, spread=[1.1, 1.3])}
    assert chosen(own_cache, SHAPE, 2, load()) == last.values


@pytest.mark.parametrize(
    "changes",
    [{"code": "other"}, {"machine": "other"}, {"threads": 3}, {"shape": "hidden=256,out=65"}],
    ids=lambda changes: next(iter(changes)),
)
def test_settings_of_other_code_or_machines_are_not_used(own_cache, changes):
    """Settings of other machine code, another machine, more threads or other sizes are not used."""
    keep([a_tuning(own_cache, **changes)])
    assert chosen(own_cache, SHAPE, 2, load()) == starting(own_cache)


def test_unknown_knob_values_are_not_used(own_cache):
    """They were never tried."""
    keep([a_tuning(own_cache, values={"ahead": 3, "near": 0, "unknown": 1})])
    assert chosen(own_cache, SHAPE, 2, load()) == starting(own_cache) | {"near": 0}


def test_stored_settings_are_listed(monkeypatch):
    """They are listed by name, without those of other machine code."""
    kernels = [find("linear/cpu/generic/F32"), find("linear/cpu/generic/F16")]
    for kernel in kernels:
        code_of(kernel)
    found = [a_tuning(kernel) for kernel in kernels]
    stale = replace(found[0], code="other")
    monkeypatch.setattr(tuning, "load", lambda: {one.key: one for one in (*found, stale)})
    assert current() == found[::-1]
    assert all(one.machine == machine() for one in current())
