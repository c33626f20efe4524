"""Drafts beside the formula: each part in small, figures of what is known, and the page."""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import bench.speculation_speed as speculation_speed
from bench.report.speculation import section
from bench.results import Results, read
from bench.speculation import drawing, goals, page
from bench.speculation.contest import A_STEP, Contest, Outcome, Synthetic
from bench.speculation.formula import speedup
from bench.speculation.lookup import COPIED, FIXED, LOOKUP, lookup
from bench.speculation.pair import DRAWN, PAIR, pair
from bench.speculation.replay import Replay
from bench.speculation.sparse import DENSE, DRAFTS, EACH, SPARSE, TOGETHER, UNION, sparse, unions
from bench.speculation.synthetic import CURVE, FORMULA, PLAIN, synthetic
from bench.speculation.texts import Held, opening
from bench.speculation.verifying import VERIFY, Verifying, verifying
from bench.speculation.writer import GREEDY, TextError, Writer, chains, drafting, write
from bench.tests.synthetic import CONDITIONS
from bench.timing import Rule
from engine import Engine, Options

TWICE = Rule(least=2, most=2)
OPTIONS = Options(context=256, threads=1)
DEPTH, LENGTH = 8, 20


def unwatched(_: int) -> None:
    """Nobody wants to know how many rounds are done."""


@pytest.fixture(name="small", scope="module")
def _small(sparse_model: Path) -> Iterator[Engine]:
    with Engine.load(sparse_model, OPTIONS) as engine:
        yield engine


@pytest.mark.parametrize("gamma", [1, 4, 9])
def test_the_formula(gamma: int) -> None:
    """The closed form, and what it is where all is accepted or nothing."""
    for alpha in (0.1, 0.6, 0.9):
        tokens = (1 - alpha ** (gamma + 1)) / (1 - alpha)
        assert speedup(alpha, gamma, 0.2) == pytest.approx(tokens / (0.2 * gamma + 1))
        assert speedup(alpha, gamma, 0.2, 1.5) == pytest.approx(tokens / (0.2 * gamma + 1.5))
    assert speedup(1, gamma, 0) == gamma + 1
    assert speedup(0, gamma, 0.5) == 1 / (gamma / 2 + 1)


def free() -> float:
    return 0.0


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8, 1.0])
def test_a_replay_is_accepted_as_often_as_it_says(small: Engine, alpha: float) -> None:
    """Tokens a step are the formula's: exactly where nothing or all is right, else within five of
    the mean's standard deviations. The text stays the plain one."""
    gamma, prompt = 3, opening(small, DEPTH)
    plain = write(small, prompt, GREEDY, 220)
    assert plain.steps == 220
    replay = Replay([*prompt, *plain.tokens], small.model.config.vocab, alpha, free)
    writer = Writer(
        small, [prompt], GREEDY, 200, chains(small, replay, gamma), expected=[plain.tokens]
    )
    for _ in range(5):
        writer()
    expected = speedup(alpha, gamma, 0)
    chances = [alpha**n * (1 - alpha) for n in range(gamma)] + [alpha**gamma]
    variance = sum(p * (1 + n - expected) ** 2 for n, p in enumerate(chances))
    assert abs(writer.tokens_per_step - expected) <= 5 * (variance / writer.steps) ** 0.5 + 1e-12
    assert writer.tokens >= 1000


def test_a_replay_takes_its_time() -> None:
    """For each token that it has, which at the end of the text are fewer than it is asked for."""
    replay = Replay([1, 2, 3, 4, 5], 9, 1.0, lambda: 0.01)
    for held, told in ((1, (2, 3, 4)), (4, (5,))):
        started = time.perf_counter()
        draft = replay.draft([1, 2, 3, 4, 5][:held], 3)
        assert time.perf_counter() - started >= 0.01 * len(told)
        assert draft.tokens == told


def test_another_text_is_an_error(small: Engine) -> None:
    """As is one that the context has no room for."""
    prompt = opening(small, DEPTH)
    tokens = list(write(small, prompt, GREEDY, LENGTH).tokens)
    assert Writer(small, [prompt], GREEDY, LENGTH, expected=[tokens])() > 0
    tokens[7] += 1
    with pytest.raises(TextError, match=f"token 7 is {tokens[7] - 1} with drafts and {tokens[7]}"):
        Writer(small, [prompt], GREEDY, LENGTH, expected=[tokens])()
    with pytest.raises(TextError, match="the context was full after 249 tokens of 300"):
        write(small, prompt, GREEDY, 300)


def test_stretches_are_whole_steps(small: Engine) -> None:
    """Drafts that are right as long as the text goes on give gamma + 1 tokens a step, so a stretch
    of 20 has 24; without drafts the engine is as it was."""
    prompt = opening(small, DEPTH)
    text = write(small, prompt, GREEDY, 40).tokens
    replay = Replay([*prompt, *text], small.model.config.vocab, 1.0, free)
    with drafting(small, chains(small, replay, 5)):
        found = write(small, prompt, GREEDY, LENGTH)
    assert (len(found.tokens), found.steps) == (1 + 24, 4)
    assert found.tokens == text[:25]
    assert small.speculation is None
    assert found.pace == found.seconds / 24


def test_a_held_text(small: Engine) -> None:
    """The target says what it is held to, whatever it would have said."""
    text = opening(small, DEPTH + 2 * LENGTH, 5)
    params = replace(GREEDY, logits_processors=[Held(text)])
    found = write(small, text[:DEPTH], params, LENGTH)
    assert list(found.tokens) == text[DEPTH : DEPTH + LENGTH + 1]
    assert list(write(small, text[:DEPTH], GREEDY, LENGTH).tokens) != text[DEPTH:][: LENGTH + 1]


def test_openings(small: Engine) -> None:
    """The same for a number; of an embedded model they are stories, from the first token on."""
    assert opening(small, 9, 1) == opening(small, 9, 1) != opening(small, 9, 2)
    with Engine.load("story-draft", OPTIONS) as story:
        first, second = (opening(story, 300, number) for number in (0, 1))
        assert first[0] == second[0] == story.tokenizer.bos_id
        assert len(first) == len(second) == 300
        assert first != second
        assert "Once" in story.tokenizer.decode(first)


def test_verifying_in_small(small: Engine) -> None:
    """Each number of tokens was sampled, and the engine can go on."""
    text = opening(small, DEPTH + 5)
    found = verifying(small, text, DEPTH, (1, 2, 5), TWICE, unwatched)
    assert {tokens: len(samples) for tokens, samples in found.samples.items()} == {1: 2, 2: 2, 5: 2}
    assert small.text.held == []
    assert small.model.cells.free == OPTIONS.context
    assert found.cost(1) == 1


def test_a_synthetic_contest_in_small(small: Engine) -> None:
    """Plain writes a token a step; drafts have what the formula says of them."""
    drafts = [Synthetic(1.0, 3, 0.0, 1.1), Synthetic(0.0, 3, 0.1, 1.1)]
    prompt = opening(small, DEPTH)
    found = synthetic(FORMULA, small, prompt, LENGTH, drafts, TWICE, unwatched)
    told = [(o.name, o.base, o.tokens_per_step, o.checked) for o in found.outcomes]
    assert told == [
        (PLAIN, "", 1, True),
        ("alpha 1, 3 tokens, c 0", PLAIN, 4, True),
        ("alpha 0, 3 tokens, c 0.1", PLAIN, 1, True),
    ]
    assert [o.drafts for o in found.outcomes] == [None, *drafts]


def test_a_pair_in_small(small: Engine, sparse_model: Path) -> None:
    """A model that drafts for itself is always right."""
    with Engine.load(sparse_model, OPTIONS.of_a_draft()) as draft:
        prompts = [opening(small, DEPTH, number) for number in range(2)]
        found = pair(small, draft, prompts, LENGTH, TWICE, unwatched)
    rates = {o.name: o.tokens_per_step for o in found.outcomes}
    assert rates["greedy, plain"] == rates["temperature 0.8, plain"] == 1
    assert rates["greedy, chains of 4"] == 5
    assert rates[f"temperature 0.8, {DRAWN}"] > 1
    checked = {o.name for o in found.outcomes if o.checked}
    assert checked == {name for name in rates if "plain" not in name and DRAWN not in name}


def test_lookup_in_small(small: Engine) -> None:
    """What is copied out of the prompt is found there, as far as drafts go."""
    passage = opening(small, 3 * LENGTH, 2)
    found = lookup(small, passage, LENGTH, TWICE, unwatched)
    assert found.find(COPIED).checked
    assert found.find(FIXED).tokens_per_step == 11
    assert "by itself it repeats" in found.notes[0]


def test_sparse_in_small(sparse_model: Path) -> None:
    """All five ways, right in all their drafts, give as many tokens a step."""
    drafts = Synthetic(1.0, 3, 0.0, 1.0)
    found = sparse(sparse_model, OPTIONS, DEPTH, LENGTH, drafts, TWICE, unwatched)
    rates = {o.name: o.tokens_per_step for o in found.outcomes}
    assert [name for name, rate in rates.items() if rate == 4] == [DRAFTS, EACH, TOGETHER]
    assert len(rates) == 5
    assert all(o.checked and o.base == ("" if o.name == DENSE else DENSE) for o in found.outcomes)


def test_unions_in_small(sparse_model: Path) -> None:
    """One token's union is its own mask; of more tokens it grows, and stays below what masks that
    never agree would have."""
    found = unions(sparse_model, OPTIONS, 36).found
    first = found[0]
    assert first.tokens == 1
    assert first.share == pytest.approx(first.independent) == pytest.approx(first.alike)
    assert 0.1 < first.share < 0.5
    for before, after in pairwise(found):
        assert before.share < after.share < after.tokens * first.share
        assert before.independent < after.independent <= after.alike


# Figures of what is known

COST = Verifying("t.gguf", 2, 32, {1: (1.0, 2.0, 1.0), 3: (1.2, 2.4, 1.2), 5: (1.3, 3.0, 1.4)})
KNOWN = Contest(
    FORMULA,
    "t.gguf",
    2,
    [
        Outcome(PLAIN, "", (0.4, 0.4, 0.4), 1.0),
        Outcome("two", PLAIN, (0.2, 0.2, 0.2), 2.4, True, Synthetic(0.8, 2, 0.0, 1.2)),
        Outcome("four", PLAIN, (0.15, 0.15, 0.15), 3.3, True, Synthetic(0.8, 4, 0.0, 1.4)),
    ],
)


def test_costs_of_steps() -> None:
    """Ratios within rounds, not of medians; between measured steps on the line."""
    assert COST.quartiles(5) == pytest.approx((1.35, 1.4, 1.45))
    assert COST.cost(4) == pytest.approx(1.3)
    assert list(goals.of_verifying(COST)) == [
        "A step of 5 tokens costs 1.40 of one of 1, quartiles 1.35 and 1.45; the goal is at most"
        " 1.35: missed."
    ]


def test_figures_of_a_contest() -> None:
    """Times plain, and the shares of both formulas; the goal is of the fastest length."""
    plain, two, four = KNOWN.outcomes
    assert KNOWN.faster(plain) is None
    assert KNOWN.reached(plain) is None
    faster, reached = KNOWN.faster(two), KNOWN.reached(two)
    assert faster
    assert reached
    assert faster.value == pytest.approx(2)
    assert reached.value == pytest.approx(2 / 2.44)
    with_cost = KNOWN.reached(two, verified=True)
    assert with_cost
    assert with_cost.value == pytest.approx(2 / (2.44 / 1.2))
    assert goals.fastest(KNOWN, [two, four]) is four
    (line,) = goals.of_contest(KNOWN)
    assert line == (
        "With alpha 0.8 and c 0 drafts of 4 are fastest: 79% of the formula; the goal is at least"
        " 85%: missed."
    )


@pytest.mark.parametrize(
    ("kind", "name", "told"),
    [
        (LOOKUP, COPIED, "2.00 times as fast as plain; the goal is at least 2: reached."),
        (PAIR, "trees", "Most tokens a step: 1.40 (trees); the goal is at least 1.5: missed."),
    ],
)
def test_other_goals(kind: str, name: str, told: str) -> None:
    outcomes = [Outcome(PLAIN, "", (0.4,) * 3, 1.0), Outcome(name, PLAIN, (0.2,) * 3, 1.4)]
    assert list(goals.of_contest(Contest(kind, "t.gguf", 2, outcomes))) == [told]


def test_rows_for_the_results(tmp_path: Path) -> None:
    """Seconds a token and tokens a step of each way, seconds of steps, shares of neurons."""
    kept = Results(tmp_path, CONDITIONS)
    kept.add(*KNOWN.measurements(), *COST.measurements())
    rows = {row.test: row for row in read(kept.path).measurements}
    assert rows["two"].samples == (0.2, 0.2, 0.2)
    assert (rows["two"].bench, rows["two"].shape, rows["two"].checked) == (
        "speculation",
        FORMULA,
        3,
    )
    assert (rows[f"two{A_STEP}"].unit, rows[f"two{A_STEP}"].median) == ("tokens", 2.4)
    assert (rows["5 tokens"].tokens, rows["5 tokens"].shape) == (5, "verify behind 32")
    assert len({rows[name].rivals for name in (PLAIN, "two", "four")}) == 1


def test_the_reports_section(sparse_model: Path, tmp_path: Path) -> None:
    """A table for each race, beside its first row; one for neurons, which nothing is raced with."""
    kept = Results(tmp_path, CONDITIONS)
    found = unions(sparse_model, OPTIONS, 18)
    for part in (COST, KNOWN, found):
        kept.add(*part.measurements())
    steps, ways, together = section(read(kept.path)).tables
    assert ways.caption == f"t: {FORMULA}, on 2 threads"
    assert [[cell.text for cell in row] for row in ways.rows] == [
        [PLAIN, "400", "—", "1.00"],
        ["two", "200", "2.00 [2.00, 2.00]", "2.40"],
        ["four", "150", "2.67 [2.67, 2.67]", "3.30"],
    ]
    assert [row[0].text for row in steps.rows] == ["1 token", "3 tokens", "5 tokens"]
    assert {row[3].text for row in steps.rows} == {"—"}
    assert [row[1].value for row in together.rows] == [u.share for u in found.found]


def parts(sparse_model: Path) -> list[page.Part]:
    return [COST, KNOWN, replace(KNOWN, kind=CURVE), unions(sparse_model, OPTIONS, 18)]


def test_the_page(sparse_model: Path, tmp_path: Path) -> None:
    """Tables, plots where a curve says more, and what was to be reached."""
    page.write(parts(sparse_model), CONDITIONS, tmp_path / "drafts.md")
    text = (tmp_path / "drafts.md").read_text()
    names = {path.name for path in tmp_path.glob("*.svg")}
    assert names == {f"drafts-t-{VERIFY}.svg", f"drafts-t-{CURVE}.svg", f"drafts-small-{UNION}.svg"}
    assert all(f"]({name})" in text for name in names)
    assert "| two | 200 | 2.40 | 2.00 [2.00, 2.00] | 2.44 | 82% [82%, 82%] | 1.20 |" in text
    assert "the goal is at most 1.35: missed" in text


def test_the_curve_has_the_formula_beside_it() -> None:
    """Measured points, and both formulas from alpha 0 to 1."""
    axes = drawing.curve(replace(KNOWN, kind=CURVE, outcomes=KNOWN.outcomes[:2])).axes[0]
    lines = {str(line.get_label()): np.transpose(line.get_data()) for line in axes.get_lines()}
    allowed, verified = (y for name, y in lines.items() if name.startswith("the formula"))
    assert allowed[0].tolist() == [0, 1]
    assert allowed[-1].tolist() == pytest.approx([1, 3])
    assert verified[:, 1] == pytest.approx(allowed[:, 1] / 1.2)
    assert any(
        len(line) == 1 and line[0].tolist() == pytest.approx([0.8, 2]) for line in lines.values()
    )


def test_json_is_of_numbers_alone(sparse_model: Path) -> None:
    """No NaN, which is not JSON."""
    told = [json.loads(json.dumps(page.as_dict(p), allow_nan=False)) for p in parts(sparse_model)]
    assert [part["kind"] for part in told] == [VERIFY, FORMULA, CURVE, UNION]
    assert told[1]["ways"][1]["times_plain"] == pytest.approx([2, 2, 2])
    assert told[0]["steps"][0]["quartiles"] == [1, 1, 1]


# The program


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["speculation_speed", *words])
    return speculation_speed.main()


def test_the_program(
    sparse_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All parts of a target with predictors and a draft model; --quick keeps no rows."""
    monkeypatch.setenv("ASSAY_RESULTS", str(tmp_path / "results"))
    words = [str(sparse_model), "--draft", str(sparse_model), "-t", "1", "--quick"]
    assert run(monkeypatch, *words, "-o", str(tmp_path / "page.md"), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert [part["kind"] for part in told] == [VERIFY, FORMULA, CURVE, PAIR, LOOKUP, SPARSE, UNION]
    assert (tmp_path / "page.md").read_text().count("\n## ") == 7
    assert not (tmp_path / "results").exists()


def test_the_program_keeps_rows(
    sparse_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of the parts that were asked for, which are shown as tables."""
    monkeypatch.setenv("ASSAY_RESULTS", str(tmp_path))
    monkeypatch.setattr(speculation_speed, "FULL", speculation_speed.QUICK)
    assert run(monkeypatch, str(sparse_model), "--part", "lookup", "-t", "1", "-s", "1") == 0
    assert "the goal is at least 2" in capsys.readouterr().out
    (kept,) = tmp_path.glob("*.jsonl")
    assert {row.shape for row in read(kept).measurements} == {LOOKUP}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["none.gguf"], "none.gguf"),
        (["story", "-o", "/nowhere/page.md"], "/nowhere: no such"),
        (["story", "--part", "pair"], "the part pair wants a draft model"),
        (["story", "--part", "sparse"], "not sparse"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *words, "--quick") == 1
    err = capsys.readouterr().err.strip()
    assert told in err
    assert "\n" not in err
