"""Quality of formats and skipped neurons: the lower bound, bits, and the report."""

import json
import math

import pytest

from bench.quality import HELD_OUT, LLAMA_3, QUICK, bits, floor, mixed, pure, stories
from bench.report.quality import family, quality, section, sparsity_section, surprises
from bench.tests.support.synthetic import DIVERGENCES, qualities, rows_of, shown, sparsities
from engine.embedded import resolve
from engine.quantise.mixes import MIXES


def test_every_format_has_its_place():
    """Every quantisable format is measured, and has a place in the order."""
    bases = {mix.base for mix in MIXES.values()}
    assert bases == set(pure())
    assert set(QUICK) <= bases
    assert all(recipe.mix.base == name for name, recipe in pure().items())
    assert list(LLAMA_3.values()) == sorted(LLAMA_3.values())
    assert mixed()["Q4_K_M"].mix is MIXES["Q4_K_M"]
    assert all(family(name) for name in pure() if name not in ("F32", "F16", "BF16"))


def test_the_floor_is_the_grammar_s():
    """For all held-out stories it is the stored perplexity."""
    facts = json.loads((HELD_OUT.parent / "facts.json").read_text())["held_out"]
    assert floor(stories(), 1).samples == (pytest.approx(facts["floor_perplexity"]),)


def test_bits_are_those_of_the_file():
    """F16 with norms in F32 takes a little more than 16 bits, Q8_0 a little more than 8.5."""
    assert 16 < bits(resolve("story-f16")) < 16.1
    assert 8.5 < bits(resolve("story-q8_0")) < 8.6


def test_the_report_tells_of_every_format():
    """In the order expected, each with the difference from F16; surprises are said, of a format
    that is before another by more than twice the error."""
    found = section(rows_of(*qualities()))
    table, mixes = found.tables
    assert table.caption.endswith("1.3000")
    assert [row[0].text for row in table.rows] == list(DIVERGENCES)
    rows = {row[0].text: row for row in table.rows}
    assert rows["Q2_K"][2].text == "1.6300 ± 0.0100"
    assert rows["Q2_K"][3].value == pytest.approx(0.3)
    assert rows["Q2_K"][4].text == "0.30 ± 0.03"
    assert rows["Q8_0"][5].text == "100.00%"
    assert rows["F16"][3].value is None
    assert {row[0].text: row[6].text for row in table.rows if row[6].text != "—"} == {
        "Q5_0": "before Q5_1"
    }
    assert [row[0].text for row in mixes.rows] == ["Q6_K", "Q2_K"]
    assert [row[4].text for row in mixes.rows] == ["+0.022", "+3.52"]
    assert mixes.rows[1][3].value == pytest.approx(0.2)
    assert len(found.plots) == 1
    _, pure, _ = quality(rows_of(*qualities()))
    assert surprises("Q5_0", pure) == ["Q5_1"]
    pure.loc["Q5_0", "KL divergence, standard error"] = 2e-3
    assert surprises("Q5_0", pure) == []


def test_the_report_tells_of_every_threshold():
    """In the order measured: all neurons, those that fire, then the predictors."""
    found = sparsity_section(rows_of(*sparsities()))
    (table,) = found.tables
    assert table.caption == "10.0% of the neurons fire"
    rows = shown(table)
    assert rows[0] == [
        "all neurons", "—", "100.0%", "—", "—", "1.3300 ± 0.0100", "—", "100.00%",
    ]  # fmt: skip
    assert rows[1][:3] == ["those that fire", "—", "10.0%"]
    assert rows[3] == [
        "those predicted", "1", "20.0%", "100.0%", "50.0%", "1.3400 ± 0.0100", "0.010 ± 0.001",
        "99.50%",
    ]  # fmt: skip
    assert [row[1].value for row in table.rows[2:]] == [0, 1, 4]
    assert len(found.plots) == 1


def test_a_run_without_it_says_so():
    """No table, no plot, no floor made up."""
    for found in (section(rows_of()), sparsity_section(rows_of())):
        assert not found.tables
        assert not found.plots
    assert math.isnan(quality(rows_of())[0])
