"""Knobs measured on a loaded model: settings are stored and used, and no bit depends on them."""

import json
from contextlib import closing
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.models.small_families import SmallMixture
from conformance.support.program import printed
from engine.compile import tune
from engine.compile.tune import Group, Tuner, groups_of
from engine.embedded import resolve
from engine.model import Model
from engine.options import Options
from kernels import tuning
from kernels.cpu.linear.linear_pairs import PAIRS_FROM
from kernels.tuning import load

PROMPT = [1, 5, 9, 300]


@pytest.fixture
def measured(monkeypatch):
    """Weights of any size are measured, however busy the machine is; nothing is stored yet."""
    monkeypatch.setattr(tune, "LEAST", 0)
    monkeypatch.setattr(tune, "BUSY", 1e9)
    kept: list[bytes] = []
    monkeypatch.setattr(tuning, "append", lambda _, data: kept.append(data))
    monkeypatch.setattr(tuning, "read_all", lambda _: iter(kept))
    return kept


def story(**options) -> "closing[Model]":
    return closing(Model(resolve("story"), Options(threads=2, context=64, **options)))


def knobs(model: Model) -> dict[str, list[int]]:
    return {name: list(map(int, values)) for name, values in model.plan.knobs.items()}


def test_tuned_settings_are_stored_and_change_no_bit(measured):
    """The first load measures each kernel and size once, the second uses the results."""
    with story(tune=False) as plain:
        expected = plain.evaluate(PROMPT, 0).copy()
    with story() as first:
        chosen = knobs(first)
        assert_array_equal(first.evaluate(PROMPT, 0), expected)
    found = load()
    assert len(found) == len(chosen) > 1
    lines = len(measured)
    with story() as second:
        assert knobs(second) == chosen
        assert groups_of(second.plan, found, 2) == []
        assert_array_equal(second.evaluate(PROMPT, 0), expected)
    assert len(b"".join(measured).splitlines()) == len(found)
    assert len(measured) == lines


def test_models_that_fit_into_a_cache_are_not_measured(monkeypatch):
    """Its weights fit into a cache."""

    def never(*_):
        raise AssertionError("it was measured")

    monkeypatch.setattr(Tuner, "_turns", never)
    with story() as model:
        assert knobs(model)


def test_kernels_over_neuron_lists_are_not_measured(measured):
    """Kernels over lists of neurons have knobs, which only the table of starting values sets."""
    with closing(
        Model(resolve("story-relu"), Options(threads=2, context=64, sparse="on"))
    ) as model:
        having = {s.node.op for s in model.plan.steps if s.kernel.knobs}
        alone = {group.kernel.op for group in groups_of(model.plan, {}, 2)}
    assert {"linear", "sparse_linear", "sparse_axpy"} <= having
    assert alone == {"linear"}


def test_expert_kernels_are_not_measured_alone(measured, tmp_path):
    """Expert token counts come from an earlier node: with arbitrary memory instead the kernel would
    access out of bounds."""
    path = SmallMixture(format="Q4_0").write(tmp_path / "small.gguf")
    with closing(Model(path, Options(threads=2, context=64))) as model:
        having = {s.node.op for s in model.plan.steps if s.kernel.knobs}
        alone = {group.kernel.op for group in groups_of(model.plan, {}, 2)}
    assert having == {"linear", "linear_experts"}
    assert alone == {"linear"}


def tuned_with_times(monkeypatch, seconds, budget=1e9):
    """The chosen values if passes take these synthetic times, and the previous ones."""
    monkeypatch.setattr(Tuner, "_pass", lambda self, groups, tokens: seconds(groups, tokens))
    with story(tune=False) as model:
        before = [group.now() for group in groups_of(model.plan, {}, 2)]
        return Tuner(model.plan, model.team, budget).tuned(), before


def test_noisy_measurements_are_discarded(measured, monkeypatch):
    """If repeated times differ too much, settings stay and nothing is stored."""
    monkeypatch.setattr(tune, "BUSY", 0)
    with story(tune=False) as model:
        before = knobs(model)
        assert Tuner(model.plan, model.team, 1).tuned() == []
        assert knobs(model) == before
    assert not measured


def prefetch_takes(seconds: float, groups: list[Group], tokens: int) -> list[float]:
    """This time with a prefetch distance of 8 KiB, otherwise 1, for any number of tokens."""
    return [seconds if group.now()["ahead"] == 8192 else 1.0 for group in groups]


@pytest.mark.usefixtures("measured")
def test_the_faster_value_is_chosen_and_no_other(monkeypatch):
    """With synthetic times in which 8 KiB is faster by half, it is chosen."""
    found, before = tuned_with_times(monkeypatch, partial(prefetch_takes, 0.5))
    assert [one.values for one in found] == [values | {"ahead": 8192} for values in before]
    assert all((one.gain, one.spread) == (2.0, (2.0, 2.0)) for one in found)


@pytest.mark.usefixtures("measured")
def test_knobs_beyond_the_time_limit_are_skipped(monkeypatch):
    """Several tokens take a second, a single one almost nothing: knobs that affect only several
    tokens are skipped, whatever they would gain."""

    def seconds(groups: list[Group], tokens: int) -> list[float]:
        wanted = "ahead" if tokens == 1 else "ahead_many"
        each = 1e-4 if tokens == 1 else 1.0
        return [each / (1 + (group.now()[wanted] == 8192)) for group in groups]

    found, before = tuned_with_times(monkeypatch, seconds, 1)
    assert [one.values for one in found] == [values | {"ahead": 8192} for values in before]
    assert {tuple(one.gains.items()) for one in found} == {(("ahead", 2.0),)}


@pytest.mark.parametrize("best", PAIRS_FROM.values)
def test_a_crossover_is_found(monkeypatch, best):
    """With synthetic times: pairs are twice as fast from some number of tokens on, and half as fast
    below. Each step is measured both ways, however many values there are."""
    asked: list[int] = []

    def seconds(self, groups, tokens):
        asked.append(tokens)
        paired = 0 < groups[0].now()["pairs_from"] <= tokens
        return [tokens * (1.0 if paired == (0 < best <= tokens) else 2.0)]

    monkeypatch.setattr(Tuner, "_pass", seconds)
    kernel = SimpleNamespace(knobs=(PAIRS_FROM,))
    group = Group(kernel, {}, np.array([PAIRS_FROM.default]), {})
    gain = Tuner(None, None, 1)._choose([group], PAIRS_FROM, PAIRS_FROM.tokens, turns=5)
    assert group.now() == {"pairs_from": best}
    assert (gain[0] > 1) == (best != PAIRS_FROM.default)
    assert len(asked) == 5 * len(PAIRS_FROM.tokens) * (2 + 2)


def test_indistinguishable_crossovers_are_not_measured(monkeypatch):
    """In a plan of at most 31 tokens, with slow pairs, crossovers at 32 and 64 are the same."""

    def seconds(_, groups, tokens):
        return [2.0 if 0 < groups[0].now()["pairs_from"] <= tokens else 1.0]

    monkeypatch.setattr(Tuner, "_pass", seconds)
    steps = tune.steps_of([PAIRS_FROM], 31)[PAIRS_FROM]
    assert steps == [16, 31]
    for value in PAIRS_FROM.values:
        group = Group(SimpleNamespace(knobs=(PAIRS_FROM,)), {}, np.array([value]), {})
        Tuner(None, None, 1)._choose([group], PAIRS_FROM, steps, turns=5)
        assert group.now() == {"pairs_from": 32 if value == 16 else value}


@pytest.mark.usefixtures("measured")
def test_settings_slower_in_total_are_reverted(monkeypatch):
    """8 KiB seemed faster until all new settings together were compared with all previous ones."""
    calls = 0

    def seconds(groups: list[Group], tokens: int) -> list[float]:
        nonlocal calls
        calls += 1
        knobs_in_turn = dict.fromkeys(k for group in groups for k in group.kernel.knobs)
        late = 7 + tune.MOST * sum(len(knob.values) + 2 for knob in knobs_in_turn)
        return prefetch_takes(0.5 if calls < late else 2.0, groups, tokens)

    found, before = tuned_with_times(monkeypatch, seconds)
    assert [one.values for one in found] == before
    assert {one.gain for one in found} == {1.0}


def test_the_tune_command(measured, inside):
    """`assay tune` once, then nothing is left; `assay ops --tuning` as a table and as JSON."""
    assert "nothing was measured" in printed(inside("ops", "--tuning"))
    words = "tune", "story", "-t", "2", "--seconds", "0.1"
    assert "ahead=" in printed(inside(*words))
    assert "nothing new" in printed(inside(*words))
    assert "linear/cpu/" in printed(inside("ops", "--tuning"))
    rows = json.loads(printed(inside("ops", "--tuning", "--json")))
    assert {row["kernel"].split("/")[0] for row in rows} == {"linear"}
    assert {row["threads"] for row in rows} == {2}
