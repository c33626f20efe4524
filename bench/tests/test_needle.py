"""Facts found again: the program in small, and what its figures are made of."""

import json

import numpy as np
import pytest

from bench import needle
from bench.needle import QUICK, answers, cases, nats
from bench.tests.support.programs import main_of
from engine import Engine
from engine.policies.table import POLICIES


@pytest.fixture(scope="module")
def engine():
    with Engine.load(needle.MODEL, threads=1, context=1024) as engine:
        yield engine


def test_the_program_in_small(monkeypatch, capsys, tmp_path):
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
