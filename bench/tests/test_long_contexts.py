"""What methods keep of a long text, and what a step behind it takes: both programs in small, and
what their figures are made of."""

import json

import numpy as np
import pytest

from bench import long_contexts, needle
from bench.engine.profile import timed_step
from bench.long_contexts import bytes_read, fill
from bench.needle import QUICK, answers, cases, nats, text_of
from bench.tests.support.programs import main_of
from engine import Engine
from engine.policies.table import POLICIES, parse_policy


@pytest.fixture(scope="module")
def engine():
    with Engine.load(needle.MODEL, threads=1, context=1024) as engine:
        yield engine


def test_answers_in_small(monkeypatch, capsys, tmp_path):
    """Every policy has its answers and a perplexity that is not below the grammar's; all cells
    answer; the page has its picture."""
    page = tmp_path / "page.md"
    words = "--quick", "--json", "-t", "1", "-o", str(page)
    assert main_of(monkeypatch, needle, *words) == 0
    answered, perplexities = json.loads(capsys.readouterr().out)
    floor = float(perplexities["table"].rpartition(" ")[2])
    for found in (answered["rows"], perplexities["rows"]):
        assert [row["Policy"] for row in found] == ["kivi2", *POLICIES]
        assert found[0]["30%"] is None
    assert {row["100%"] for row in answered["rows"]} == {1.0}
    costs = [cost for row in perplexities["rows"] for cost in (row["30%"], row["100%"]) if cost]
    assert len(costs) == 2 * len(POLICIES) + 1
    assert min(costs) > floor
    assert (tmp_path / "page-depths.svg").read_text().count(">100<") >= 2 * len(POLICIES)


def test_a_wrong_fact_is_no_answer(engine):
    """An answer is right for the fact that was told, and wrong for another colour."""
    asked = cases(engine.tokenizer, QUICK)[0][0]
    assert answers(engine, asked)
    other = needle.replace(asked.fact, colour="red" if asked.fact.colour != "red" else "blue")
    assert not answers(engine, needle.replace(asked, fact=other))


def test_what_follows_costs_what_it_scores(engine):
    """Without a policy forced tokens cost what the engine's own scores say of them."""
    (tale,) = cases(engine.tokenizer, QUICK)[1]
    scored = engine.score(tale.prompt, tale.following)
    np.testing.assert_allclose(-np.array(nats(engine, tale)), scored.logprobs, atol=1e-4)


SMALL, HELD = "story", 400


def told(monkeypatch, capsys, *options):
    """What the program prints for programs, of one table."""
    given = [SMALL, "--held", str(HELD), "-t", "2", "--quick", "--json", "--no-peer", *options]
    assert main_of(monkeypatch, long_contexts, *given) == 0
    (table,) = json.loads(capsys.readouterr().out)
    return table["rows"]


def test_the_program_in_small(monkeypatch, capsys, tmp_path):
    """Every method has its bytes and its time in turns with all cells; the page has pictures, and
    says who is absent."""
    page = tmp_path / "page.md"
    full, kivi, *others = told(monkeypatch, capsys, "-o", str(page))
    assert (full["Method"], kivi["Method"]) == ("all cells", "kivi2")
    assert [row["Method"] for row in others] == list(POLICIES)
    for row in others:
        if row["Method"] == "minicache":  # reads of its pages what both blocks had
            assert row["MB held"] < full["MB held"]
            continue
        assert row["MB read"] < full["MB read"]
        assert (row["MB held"] < full["MB held"]) == (row["Method"] != "quest")
        assert row["Times all cells"] > 0
        assert row["Bound, ms"] < full["Bound, ms"]
    assert "llama.cpp is absent" in page.read_text()
    speed = (tmp_path / "page-speed.svg").read_text()
    assert all(f">{name}<" in speed for name in POLICIES)
    assert ">held<" in (tmp_path / "page-bytes.svg").read_text()


def test_chosen_policies_race_alone(monkeypatch, capsys):
    """Policies that are named race with all cells, at the budgets that they say, and two bits."""
    texts = ["quest:budget=200,page=4,dense=0", "knorm:capacity=100", "kivi2"]
    _, *rows = told(monkeypatch, capsys, "--kv-policy", *texts)
    assert [(row["Method"], row["Budget"]) for row in rows] == [
        (texts[0], 0.5), (texts[1], 0.25), (texts[2], 1)
    ]  # fmt: skip
    assert 0 < rows[0]["Bookkeeping"] < 1


@pytest.mark.parametrize("name", ["", "snapkv", "quest"])
def test_a_step_reads_what_its_method_leaves(name):
    """Of the cache a step reads the cells that are kept or chosen, its own, and pages' extremes."""
    kept, page = 48, 16
    policy = parse_policy(text_of(name, kept / HELD, HELD, None)) if name else None
    with Engine.load(SMALL, threads=1, context=HELD + 64, batch=64, kv_policy=policy) as engine:
        model = engine.model
        fill(model, HELD)
        timed_step(model, [1], HELD)  # which makes pages' extremes
        whole, of_cache = bytes_read(model, HELD)
        rows = sum(cache.shape[1] for cache in model.caches.values())
        weights = whole - of_cache
    pages = HELD // page
    cells = {"": HELD + 1, "snapkv": kept + 1, "quest": 2 * page + (HELD + 1) % page + pages}[name]
    beside = of_cache - cells * rows  # lists of chosen cells, four bytes each
    assert 0 <= beside <= 0.08 * cells * rows
    assert weights > 10 * rows


def test_a_text_of_no_tokens_is_a_line(monkeypatch, capsys):
    """As are policies that there are not."""
    assert main_of(monkeypatch, long_contexts, SMALL, "--held", "0", "--quick") == 1
    assert capsys.readouterr().err.strip() == "--held is 0: want one token at least"
