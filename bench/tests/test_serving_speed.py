"""Many prompts at once: the program in small, beside a llama-batched-bench that is not always
heard, and figures of what is known."""

import json
from functools import partial

import pytest

from bench import serving_speed
from bench.child import ChildError
from bench.race.results import Measurement
from bench.report import serving
from bench.tests.support.programs import executable, main_of
from bench.tests.support.synthetic import rows_of, shown

BATCHED_BENCH = """#!/bin/sh
# says what it found at the second call of two
if [ -e {heard} ]; then rm {heard}; echo '{{"t": 0.5}}'; else touch {heard}; fi
"""


def run(monkeypatch, capsys, *words):
    assert main_of(monkeypatch, serving_speed, "story", "--quick", "--json", *words) == 0
    (table,) = json.loads(capsys.readouterr().out)
    return {row["What"]: row for row in table["rows"]}


def test_all_parts_in_small(monkeypatch, capsys, tmp_path):
    """Each has its figure; what prompts share is evaluated once."""
    script = BATCHED_BENCH.format(heard=tmp_path / "heard")
    program = executable(tmp_path / "llama-batched-bench", script)
    found = run(monkeypatch, capsys, "--batched-bench", program)
    assert (
        "llama.cpp 176" in found["4 prompts of 16 tokens, answers of 6, over llama.cpp"]["Measured"]
    )
    assert (
        found["A beginning that 4 prompts share"]["Measured"]
        == "60 tokens evaluated, 60 are needed"
    )
    assert len(found) == 7


def test_who_is_not_there(monkeypatch, capsys):
    """llama.cpp's program is absent, and the rest is measured."""
    assert len(run(monkeypatch, capsys, "--batched-bench", "/nowhere/llama-batched-bench")) == 6


one = partial(Measurement, serving.BENCH, model="t.gguf", threads=2, rivals="in turns")
LOAD, ONE = "sequences=8,prompt=16,answer=48", "sequences=1,prompt=16,answer=48"


def test_figures_of_what_is_known():
    """Tokens a second, steps by their tokens, shares, the 95th percentile over the median of steps
    without prompts."""
    rows = [
        one(serving.ARRIVING, shape=LOAD, samples=(1.0,) * 3, tokens=512),
        one(serving.ARRIVING, serving.PEER, shape=LOAD, samples=(2.0,) * 3, tokens=512),
        one(serving.STEP, shape=LOAD, samples=(0.02,) * 3, tokens=8),
        one(serving.STEP, shape=ONE, samples=(0.015,) * 3, tokens=1),
        one(serving.OWN, shape=LOAD, samples=(0.03,) * 3, unit="share"),
        one(serving.MIXED, shape=LOAD, samples=(0.01,) * 10, settings=serving.ANSWERS),
        one(serving.MIXED, shape=LOAD, samples=(0.025,) * 10, settings="beside"),
        one(serving.PREFIX, shape=LOAD, samples=(120.0,), unit="tokens", tokens=100),
        one(serving.ALONE, shape=ONE, samples=(0.51,) * 3),
        one(serving.BARE, shape=ONE, samples=(0.5,) * 3),
    ]  # fmt: skip
    (table,) = serving.section(rows_of(*rows)).tables
    told = [(row[2].split()[0], row[3], row[4]) for row in shown(table)]
    assert told == [
        ("2.00", "≥ 1.3", "pass"),
        ("6.00", "≥ 4", "pass"),
        ("0.03", "≤ 0.02", "miss"),
        ("2.50", "≤ 3", "pass"),
        ("1.20", "≤ 1", "miss"),
        ("1.02", "≤ 1.05", "pass"),
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [("echo cannot load >&2; exit 1", "ended with 1: cannot load"), ("exit 0", "does not print")],
)
def test_a_peer_that_fails_is_absent(tmp_path, line, reason):
    program = executable(tmp_path / "llama-batched-bench", f"#!/bin/sh\n{line}\n")
    load = serving_speed.QUICK.arriving
    with pytest.raises(ChildError, match=reason):
        serving_speed.batched_bench(program, tmp_path / "m.gguf", load, 1, 64)
