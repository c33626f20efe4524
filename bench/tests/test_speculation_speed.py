"""Speculation compared with its formula: each part in small, known figures, and the page."""

import json
import time
from argparse import Namespace
from dataclasses import replace

import pytest

import bench.speculation_speed as speculation_speed
from bench.race.experiment import Rule
from bench.race.results import Measurement
from bench.report.speculation import TITLES, Costs, section
from bench.speculation import races
from bench.speculation.races import Synthetic
from bench.speculation.writer import GREEDY, Held, Replay, TextError, Writer, chains, opening, write
from bench.tests.support.programs import main_of
from bench.tests.support.synthetic import rows_of, shown
from engine import Engine, Options

OPTIONS = Options(context=256, threads=1)
DEPTH, LENGTH = 8, 20


@pytest.fixture(name="small", scope="module")
def _small(sparse_model):
    with Engine.load(sparse_model, OPTIONS) as engine:
        yield engine


@pytest.mark.parametrize("gamma", [1, 4, 9])
def test_the_formula(gamma):
    """The closed form, and its limits if all is accepted or nothing."""
    for alpha in (0.1, 0.6, 0.9):
        drafts, tokens = Synthetic(alpha, gamma, 0.2), (1 - alpha ** (gamma + 1)) / (1 - alpha)
        assert Synthetic.named(drafts.name) == drafts
        assert drafts.speedup() == pytest.approx(tokens / (0.2 * gamma + 1))
        assert drafts.speedup(1.5) == pytest.approx(tokens / (0.2 * gamma + 1.5))
    assert Synthetic(1, gamma, 0).speedup() == gamma + 1
    assert Synthetic(0, gamma, 0.5).speedup() == 1 / (gamma / 2 + 1)


def free():
    return 0.0


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8, 1.0])
def test_a_replay_is_accepted_as_often_as_it_says(small, alpha):
    """Tokens a step are the formula's: exactly if nothing or all is right, otherwise within five
    standard deviations of the mean. The text stays the plain one."""
    gamma, prompt = 3, opening(small, DEPTH)
    plain = write(small, prompt, GREEDY, 220)
    assert plain.steps == 220
    replay = Replay([*prompt, *plain.tokens], small.model.config.vocab, alpha, free)
    writer = Writer(
        small, [prompt], GREEDY, 200, chains(small, replay, gamma), expected=[plain.tokens]
    )
    for _ in range(5):
        writer()
    expected = Synthetic(alpha, gamma, 0).speedup()
    chances = [alpha**n * (1 - alpha) for n in range(gamma)] + [alpha**gamma]
    variance = sum(p * (1 + n - expected) ** 2 for n, p in enumerate(chances))
    assert abs(writer.tokens_per_step - expected) <= 5 * (variance / writer.steps) ** 0.5 + 1e-12
    assert writer.tokens >= 1000


def test_a_replay_takes_its_time():
    """For each drafted token, which at the end of the text are fewer than requested."""
    replay = Replay([1, 2, 3, 4, 5], 9, 1.0, lambda: 0.01)
    for held, told in ((1, (2, 3, 4)), (4, (5,))):
        started = time.perf_counter()
        draft = replay.draft([1, 2, 3, 4, 5][:held], 3)
        assert time.perf_counter() - started >= 0.01 * len(told)
        assert draft.tokens == told


def test_another_text_is_an_error(small):
    """And so is one that exceeds the context."""
    prompt = opening(small, DEPTH)
    tokens = list(write(small, prompt, GREEDY, LENGTH).tokens)
    assert Writer(small, [prompt], GREEDY, LENGTH, expected=[tokens])() > 0
    tokens[7] += 1
    with pytest.raises(TextError, match=f"token 7 is {tokens[7] - 1} with drafts and {tokens[7]}"):
        Writer(small, [prompt], GREEDY, LENGTH, expected=[tokens])()
    with pytest.raises(TextError, match="the context was full after 249 tokens of 300"):
        write(small, prompt, GREEDY, 300)


def test_stretches_are_whole_steps(small):
    """Drafts that are right as long as the text goes on give gamma + 1 tokens a step, so a stretch
    of 20 has 24; without drafts the engine is as it was."""
    prompt = opening(small, DEPTH)
    text = write(small, prompt, GREEDY, 40).tokens
    replay = Replay([*prompt, *text], small.model.config.vocab, 1.0, free)
    writer = Writer(small, [prompt], GREEDY, LENGTH, chains(small, replay, 5), expected=[text])
    assert writer() == writer.pace > 0
    assert (writer.tokens, writer.steps) == (24, 4)
    assert small.speculation is None


def test_a_held_text(small):
    """The target is forced to a given text, whatever it would have generated."""
    text = opening(small, DEPTH + 2 * LENGTH, 5)
    params = replace(GREEDY, logits_processors=[Held(text)])
    found = write(small, text[:DEPTH], params, LENGTH)
    assert list(found.tokens) == text[DEPTH : DEPTH + LENGTH + 1]
    assert list(write(small, text[:DEPTH], GREEDY, LENGTH).tokens) != text[DEPTH:][: LENGTH + 1]


@pytest.fixture(name="rows", scope="module")
def _rows(sparse_model):
    """All that the program measures in small, of a target that drafts for itself."""
    asked = Namespace(target=str(sparse_model), draft=str(sparse_model), part=[], threads=1)
    asked.quick, asked.rule = True, Rule(least=2, most=2)
    return [row for rows in speculation_speed.measured(asked, str) for row in rows]


def of(rows, kind):
    """A race's tokens a step, and the ways whose text was held to the plain one's."""
    own = [row for row in rows if row.shape == kind]
    given = {row.test: row.median for row in own if row.phase == races.A_STEP}
    return given, {row.test for row in own if row.checked}


def test_drafts_in_small(rows):
    """Plain writes a token a step; drafts have what the formula says of them, a model that drafts
    for itself is always right, and what is copied out of the prompt is found there."""
    given, held = of(rows, races.CURVE)
    right, wrong = (Synthetic(alpha, speculation_speed.CURVE_GAMMA, 0.0).name for alpha in (1, 0))
    assert (given[races.PLAIN], given[wrong], given[right]) == (1, 1, 5)
    assert held == given.keys()
    given, held = of(rows, races.PAIR)
    plain, drawn = {"greedy, plain", "temperature 0.8, plain"}, f"temperature 0.8, {races.DRAWN}"
    assert {given[name] for name in plain} == {1}
    assert given["greedy, chains of 4"] == 5
    assert given[drawn] > 1
    assert held == given.keys() - {*plain, drawn}
    given, held = of(rows, races.LOOKUP)
    assert given[races.FIXED] == 11
    assert races.COPIED in held
    given, held = of(rows, races.SPARSE)
    assert next(iter(given)) == races.DENSE
    drafting = (races.DRAFTS, races.EACH, races.TOGETHER)
    assert [name for name, rate in given.items() if rate > 1] == [*drafting]
    assert len(held) == 5


def test_steps_and_unions_in_small(rows):
    """Each number of tokens was sampled. One token's union is its own mask; of more tokens it
    grows, and stays below what masks that never agree would have."""
    steps = [row for row in rows if row.shape.startswith(races.VERIFY)]
    assert {row.tokens: len(row.samples) for row in steps} == {1: 2, 3: 2, 5: 2}
    assert Costs(rows_of(*steps)).of(1) == 1
    counted = [row for row in rows if row.shape == races.UNION]
    found = rows_of(*counted).set_index(["tokens", "phase"])["median"].unstack()
    first = found.loc[1]
    assert first["run"] == pytest.approx(first["independent"]) == pytest.approx(first["alike"])
    assert 0.1 < first["run"] < 0.5
    assert found["run"].is_monotonic_increasing
    assert (found["run"][1:] < found.index[1:] * first["run"]).all()
    assert (found["independent"] <= found["alike"] + 1e-12).all()


# Figures of what is known

STEPS = {1: (1.0, 2.0, 1.0), 3: (1.2, 2.4, 1.2), 5: (1.3, 3.0, 1.4)}
COSTS = [
    Measurement(races.BENCH, f"{n} tokens", shape=f"{races.VERIFY} behind 32", model="t.gguf",
                threads=2, samples=samples, tokens=n, rivals="steps")
    for n, samples in STEPS.items()
]  # fmt: skip


def race_of(kind, **ways):
    """Rows of ways by their seconds a token and tokens a step."""
    row = Measurement(races.BENCH, "", shape=kind, model="t.gguf", threads=2, rivals=kind)
    rows = []
    for name, (seconds, tokens) in ways.items():
        rows.append(replace(row, test=name, samples=(seconds,) * 3, tokens=1))
        given = {"phase": races.A_STEP, "unit": "tokens", "samples": (tokens,)}
        rows.append(replace(rows[-1], **given))
    return rows


TWO, FOUR = Synthetic(0.8, 2, 0.0).name, Synthetic(0.8, 4, 0.0).name
KNOWN = race_of(races.FORMULA, **{races.PLAIN: (0.4, 1.0), TWO: (0.2, 2.4), FOUR: (0.15, 3.3)})


def test_costs_of_steps():
    """Ratios within rounds, not of medians; between measured steps on the line."""
    found = Costs(rows_of(*COSTS))
    assert found.quartiles[5] == pytest.approx([1.35, 1.4, 1.45])
    assert found.of(4) == pytest.approx(1.3)
    assert list(found.goal()) == [
        "a step of 5 tokens costs 1.40 of one of 1, quartiles 1.35 and 1.45; the goal is at most"
        " 1.35: missed."
    ]


def test_the_section():
    """A table for each race: times plain, and the shares of both formulas, once it is known what
    verifying costs; the goal is of the fastest length."""
    curve = [replace(row, shape=races.CURVE, rivals=races.CURVE) for row in KNOWN]
    found = section(rows_of(*COSTS, *KNOWN, *curve))
    steps, ways, _ = found.tables
    assert [plot.anchor for plot in found.plots] == ["plot-speculation-0", "plot-speculation-2"]
    assert [row[0] for row in shown(steps)] == ["1", "3", "5"]
    assert ways.caption == "t: a synthetic drafter, on 2 threads"
    assert shown(ways) == [
        [races.PLAIN, "400", "1.00", *"—" * 6],
        [TWO, "200", "2.40", "2.00 [2.00, 2.00]", "2.44", "82% [82%, 82%]", "1.20", "2.03",
         "98% [98%, 98%]"],
        [FOUR, "150", "3.30", "2.67 [2.67, 2.67]", "3.36", "79% [79%, 79%]", "1.40", "2.40",
         "111% [111%, 111%]"],
    ]  # fmt: skip
    assert found.notes[1] == (
        "t: a synthetic drafter: with alpha 0.8 and c 0 drafts of 4 are fastest: 79% of the"
        " formula; the goal is at least 85%: missed."
    )
    assert "Verifying" not in section(rows_of(*KNOWN)).tables[0].columns


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        (
            races.LOOKUP,
            races.COPIED,
            "2.00 times as fast as plain; the goal is at least 2: reached",
        ),
        (races.PAIR, "trees", "most tokens a step: 1.40 (trees); the goal is at least 1.5: missed"),
    ],
)
def test_other_goals(kind, name, told):
    rows = race_of(kind, **{races.PLAIN: (0.4, 1.0), name: (0.2, 1.4)})
    (note,) = section(rows_of(*rows)).notes
    assert note.endswith(f"{told}.")


def test_each_way_stands_beside_its_own_plain_one():
    """Greedy ones with greedy, sampled ones with sampled."""
    ways = {"greedy, plain": (0.4, 1), "greedy, chains": (0.2, 2), "warm, plain": (0.6, 1),
            "warm, chains": (0.2, 2)}  # fmt: skip
    (found,) = section(rows_of(*race_of(races.PAIR, **ways))).tables
    assert [row[3][:4] for row in shown(found)] == ["—", "2.00", "—", "3.00"]


# The program


def test_the_program(rows, tmp_path, monkeypatch, capsys):
    """A table for each race; --quick keeps no rows."""
    monkeypatch.setenv("ASSAY_RESULTS", str(tmp_path / "results"))
    monkeypatch.setattr(speculation_speed, "measured", lambda *_: (some for some in [rows]))
    page = tmp_path / "page.md"
    words = ["small", "-t", "1", "--quick", "-o", str(page), "--json"]
    assert main_of(monkeypatch, speculation_speed, *words) == 0
    told = json.loads(capsys.readouterr().out)
    assert all(f"small: {t}" in one["table"] for t, one in zip(TITLES.values(), told, strict=True))
    assert page.read_text().count("|\n| ---") == 7
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["none.gguf"], "none.gguf"),
        (["story", "-o", "/nowhere/page.md"], "/nowhere: no such"),
        (["story", "--part", "pair"], "the part pair wants a draft model"),
        (["story", "--part", "sparse"], "not sparse"),
    ],
)
def test_bad_input_is_one_line(words, told, monkeypatch, capsys):
    assert main_of(monkeypatch, speculation_speed, *words, "--quick") == 1
    err = capsys.readouterr().err.strip()
    assert told in err
    assert "\n" not in err
