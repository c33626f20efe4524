"""The speed card: figures that are what the rows say, judged by goals that can be missed."""

import time
from dataclasses import replace

import numpy as np
import pytest

from bench.contenders.contender import FAST, OURS, Check, EngineTest, Setup
from bench.contenders.racer import Racer
from bench.contenders.start import STATUS, held, peak
from bench.engine import engine_race
from bench.engine.engine_race import field_of, gaps
from bench.engine.profile import empty_steps, profile
from bench.figures import READING, reading, streamed, streams
from bench.race.experiment import Contender, Experiment, Rule, Sample
from bench.race.ratio import Ratio
from bench.race.results import Measurement
from bench.report import card
from bench.report.card import Figure, figures
from bench.report.page import table_lines
from bench.targets import TARGETS, Target
from bench.tests.support.synthetic import Maker, limits, of_the_card, rows_of
from engine import Engine
from engine.embedded import resolve
from engine.gguf.file import GGUFFile

SMALL = "story-draft-q8_0"
PAIR = (EngineTest("tg", generate=2), EngineTest("tg", generate=4))
RATIOS = {  # of the rows that `of_the_card` draws
    "tg128 ÷ llama.cpp": 1.25,
    "pp512 ÷ llama.cpp": 2.5,
    "pp512 fast ÷ llama.cpp": 5.0,
    "tg32 @ d4096 ÷ d128, ÷ the same of llama.cpp": 1.2,
    "8 sequences ÷ 1": 5.0,
    "8 sequences ÷ 1, llama.cpp": 4.0,
    "pp512 on 2 threads ÷ 1": 1.9,
    "weights streamed ÷ reading them alone": 0.8,
    "peak memory ÷ (file + cache + 400 MB)": 0.9,
}


@pytest.fixture(scope="module")
def rows():
    return list(of_the_card(Maker(3), "tinyllama-q4_0"))


def test_figures_are_the_ratios_of_the_rows(rows):
    """Every figure is found under its name, is the rows' ratio and lies in its interval."""
    found = {f.name: f.ratio for f in figures(rows_of(*rows)) if f.ratio}
    assert found.keys() >= RATIOS.keys()
    for name, value in RATIOS.items():
        assert found[name].value == pytest.approx(value, rel=0.03), name
        assert found[name].low <= found[name].value <= found[name].high
        assert found[name].high - found[name].low < 0.2 * value


def test_every_goal_has_a_figure():
    """No goal is of a figure that no run can have, or of a test that the card does not take."""
    for goal in TARGETS:
        model = f"{goal.model}-{goal.format.lower() or 'q8_0'}"
        run = rows_of(*of_the_card(Maker(4), model))
        judged = [figure.target for figure in figures(run)]
        assert goal in judged, goal


def test_goals_without_a_figure_are_told(rows):
    """A goal whose figure a run lacks is a row of the table; another format's goals are none."""
    run = rows_of(*(row for row in rows if row.bench != "memory"))
    found = figures(run)
    missing = card.unmeasured(run, found)
    assert [(model, goal.figure) for model, goal in missing] == [
        ("tinyllama-q4_0", "peak memory ÷ (file + cache + 400 MB)")
    ]
    (line,) = [row for row in table_lines(card.card(found, missing)) if "peak memory" in row]
    assert [cell.strip() for cell in line.split("|")[3:6]] == ["—", "≤ 1", "not measured"]


@pytest.mark.parametrize(
    ("value", "most", "verdict"),
    [(1.3, False, "pass"), (1.01, False, "pass, open"), (0.99, False, "miss by 1%, open"),
     (0.8, False, "miss by 20%"), (0.8, True, "pass"), (1.3, True, "miss by 30%")],
)  # fmt: skip
def test_verdicts(value, most, verdict):
    """A figure passes at its goal; where its interval holds the goal, the verdict says so."""
    interval = Ratio(value, value - 0.05, value + 0.05)
    figure = Figure("m", "f", interval, Target("f", 1.0, most=most))
    (line,) = table_lines(card.card([figure]))[2:]
    assert line.endswith(f"| {verdict} |")
    assert ("≤ 1" if most else "≥ 1") in line


def test_without_a_peer_there_is_no_comparison(rows):
    """Figures against llama.cpp want its samples; those of our own do not."""
    mine = [
        row if row.contender != "llama.cpp" else replace(row, samples=(), note="not installed")
        for row in rows
    ]
    names = [figure.name for figure in figures(rows_of(*mine))]
    assert not any("llama.cpp" in name for name in names)
    assert {"8 sequences ÷ 1", "pp512 on 2 threads ÷ 1"} <= set(names)


def test_what_stands_behind_is_told(rows):
    """TOP/s, the shares of a prompt's step, memory and empty steps have their lines."""
    lines = "\n".join(table_lines(card.behind(rows_of(*rows))))
    for words in (
        "| Linear nodes of pp512 | 2.0",
        "linear nodes 70%, quantising 10%, attention 15%, the rest 5",
        "MB, of which file 620, cache 23.0 |",
        "An empty step: 300 calls in 100 stages",
        "on 1 thread, ",
        "on 2 threads |",
        "Fast numerics' logits after pp512 | NMSE 1",
        "What Assay keeps at depth 4,096 | 9",
    ):
        assert words in lines, words


@pytest.fixture(scope="module")
def engine():
    with Engine.load(SMALL, threads=2, context=96) as loaded:
        yield loaded


def test_streams_are_of_the_weights(engine):
    """The bytes are those of the file's matrices that a token reads whole; the linear nodes take
    less than the step. What is read alone is all of them, padded to whole groups of rows."""
    found = profile(engine, depth=9, rule=Rule(least=5, error=1.0, cap_seconds=0.2))
    turns = {OURS: [0.5] * 5, READING: [0.25] * 5}
    step, alone, linear = streams(engine.model, found, limits(), turns)
    with GGUFFile(resolve(SMALL)) as file:
        names = [n for n, tensor in file.tensors.items() if len(tensor.dims) == 2]
        if "output.weight" in names:
            names.remove("token_embd.weight")
        weights = sum(file.tensor(name).nbytes for name in names)
    assert step.bytes == alone.bytes == linear.bytes == weights
    assert (step.samples, alone.samples) == tuple(map(tuple, turns.values()))
    assert step.rivals == alone.rivals != linear.rivals
    assert len(linear.samples) == len(found.nodes[0].samples)
    assert linear.median < sum(node.median for node in found.nodes)
    assert step.limit_seconds == pytest.approx(weights / 1e12)  # what the L2 of `limits` gives
    assert weights <= sum(weight.nbytes for weight in streamed(engine.model)) < 1.1 * weights
    assert 0 < reading(engine.model)() < 1


def test_an_empty_step_does_nothing(engine, monkeypatch):
    """Its logits are not written; it is timed on one thread and on all of the engine's. Where
    threads are slow to meet, a sample is of the steps that fit into its time."""
    model = engine.model
    model.step([1], [0], [(0,)], [0])
    model.plan.logits[:] = np.nan
    found = empty_steps(model)
    assert np.isnan(model.plan.logits).all()
    assert [row.threads for row in found] == [1, 2]
    assert all(0 < seconds < 1 for row in found for seconds in row.samples)
    assert found[0].shape == f"calls={len(model.plan.calls)},stages={len(model.plan.stages)}"
    runs = []
    monkeypatch.setattr("bench.engine.profile.Team.run", lambda *_: runs.append(time.sleep(0.02)))
    samples = [seconds for row in empty_steps(model) for seconds in row.samples]
    assert len(runs) <= 3 * len(samples)
    assert min(samples) >= 0.02


@pytest.mark.skipif(not STATUS.exists(), reason="this system tells no process's peak")
def test_memory_is_that_of_the_process(tmp_path):
    """The file and the cache are counted in bytes; the peak is of that process, not of this one,
    and stays when memory was given back. Where the system tells none, one line says so."""
    here = peak()
    ballast = np.ones(here // 4 + (256 << 20) // 4, np.float32)  # more than this process ever had
    assert peak() >= ballast.nbytes
    del ballast
    assert peak() >= here + (128 << 20)
    some, more = (held(resolve(SMALL), Setup(1, context=n), 8) for n in (64, 65536))
    assert some.file == resolve(SMALL).stat().st_size
    assert more.cache == 1024 * some.cache
    assert 2e7 < some.peak < peak()
    (tmp_path / "status").write_text("Name: x\n")
    with pytest.raises(ValueError, match=r"status: no VmHWM in it"):
        peak(tmp_path / "status")


def test_two_tests_in_one_race(monkeypatch):
    """Their rows share a race, and fast numerics that change no kernel are absent."""

    def same(name, *about):
        racer = Racer(OURS, *about)
        racer.name = name
        return racer

    monkeypatch.setattr(engine_race, "enter", same)
    with field_of(resolve(SMALL), Setup(1, context=32, batch=8), (OURS, FAST)) as field:
        assert [racer.name for racer in field.racers] == [OURS]
        assert field.absent == {FAST: "no kernel of this model has a fast form"}
        raced = field.experiment(*PAIR)
        assert list(raced.samplers) == ["assay tg2", "assay tg4"]
        rows = raced.run(Rule(least=1, most=1))
    assert [(row.test, row.tokens, len(row.samples)) for row in rows] == [
        ("tg2", 2, 1), ("tg4", 4, 1), ("tg2", 0, 0), ("tg4", 0, 0),
    ]  # fmt: skip
    assert len({row.rivals for row in rows}) == 1


def test_gaps_are_of_the_same_tokens():
    """Sample by sample the logits of fast numerics are compared with ours; of prompts alone."""
    prompt = EngineTest("pp", prompt=4)

    def entry(test, name, *ends):
        taken = [Sample(1.0, check=Check(0, (end, 1.0, 3.0))) for end in ends]
        row = Measurement("engine", test.name, name)
        return f"{name} {test.name}", Contender(row, taken=taken)

    entries = [entry(prompt, OURS, 0, 0), entry(prompt, FAST, 0, 1)]
    entries += [entry(PAIR[0], OURS, 0), entry(PAIR[0], FAST, 2)]
    (row,) = gaps(Experiment(dict(entries)))
    assert (row.bench, row.test, row.contender, row.unit) == ("gap", "pp4", FAST, "NMSE")
    assert row.samples == (0.0, pytest.approx(1 / 3 / np.var([0, 1, 3])))
