"""`assay bench` and `assay compare` as people call them: figures, files, one line for nonsense."""

import json
import re
import shlex

import numpy as np
import pytest

from bench.contenders.contender import CONTENDERS, present
from bench.race.results import Results, read_folder
from bench.tests.support.programs import ASSAY, EVERY_ASSAY, interrupted, run, what_all_say
from bench.tests.support.synthetic import CONDITIONS, kernels_of_a_run

SHORT = ("bench", "story", "-p", "8,0", "-n", "4", "-r", "3", "--seconds", "0.1")


def assay(folder, *words):
    return run(folder, *ASSAY, *words)


# assay bench


@pytest.fixture(name="benched", scope="module")
def _benched(tmp_path_factory):
    """One run's rows, and the run that was kept."""
    folder = tmp_path_factory.mktemp("benched")
    done = assay(folder, *SHORT, "--npl", "1,2", "-d", "0,16", "--peers", "none", "--json")
    assert done.returncode == 0, done.stderr
    (kept,), complaints = read_folder(folder)
    assert not complaints
    return json.loads(done.stdout), kept


def test_bench_gives_every_test(benched):
    """Prompts and generation at every depth, then every batch, whole and by its parts."""
    tests = [row["test"] for row in benched[0]]
    parts = [f"pp8+tg4 x{n}{part}" for n in (1, 2) for part in ("", " prompt", " generation")]
    assert tests == ["pp8", "tg4", "pp8 @ d16", "tg4 @ d16", *parts]


def test_bench_keeps_what_it_measured(benched):
    """The run that is kept holds the same samples in seconds, the tokens and the threads; median,
    mean and deviation are those of the samples, tokens a second, at least -r of them."""
    rows, kept = benched
    assert [m.test for m in kept.measurements] == [row["test"] for row in rows]
    for row, m in zip(rows, kept.measurements, strict=True):
        rates = np.array(row["samples"])
        assert len(rates) >= 3
        assert rates == pytest.approx([m.tokens / s for s in m.samples])
        told = (row["median"], row["mean"], row["sd"])
        assert told == pytest.approx((np.median(rates), rates.mean(), rates.std(ddof=1)))
        assert 1 < row["median"] < 1e6
        assert (m.bench, m.contender, m.threads) == ("engine", "assay", row["threads"])
        assert (m.model, m.settings, row["settings"]) == ("story-f16.gguf", "", "")
    by_test = {m.test: m for m in kept.measurements}
    whole = by_test["pp8+tg4 x2"]
    parts = [by_test[f"{whole.test} {part}"] for part in ("prompt", "generation")]
    assert whole.tokens == sum(part.tokens for part in parts) == 24
    for i, seconds in enumerate(whole.samples):
        assert seconds == pytest.approx(sum(part.samples[i] for part in parts), rel=0.1)


def test_bench_shows_a_table_and_who_is_absent(tmp_path):
    """Without --json: a row a test, and a line for each peer that is not installed."""
    done = assay(tmp_path, *SHORT)
    assert done.returncode == 0, done.stderr
    assert re.search(r"pp8 .*assay", done.stdout)
    assert re.search(r"tg4 .*assay", done.stdout)
    for name in CONTENDERS:
        if reason := present(name):
            assert f"{name} is absent: {reason}" in done.stdout
    assert "Traceback" not in done.stderr


def test_bench_within_a_budget(tmp_path):
    """Assay alone, and every row says so; a budget too small is one line, and nothing is kept."""
    done = assay(tmp_path, *SHORT, "--ram-budget", "900MiB", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    ours = [row for row in rows if row["contender"] == "assay"]
    assert {row["settings"] for row in ours} == {"ram_budget=900MiB"}
    others = [row for row in rows if row["contender"] != "assay"]
    assert {row["contender"] for row in others} == {"llama.cpp", "transformers"}
    assert all(not row["samples"] and "ram_budget" in row["note"] for row in others)
    (kept,), _ = read_folder(tmp_path)
    assert {m.settings for m in kept.measurements if m.samples} == {"ram_budget=900MiB"}
    done = assay(tmp_path / "none", *SHORT, "--ram-budget", "1MiB")
    assert done.returncode == 1
    *_, line = done.stderr.splitlines()
    assert line.startswith("assay: a --ram-budget of 1 MiB is too small for this model")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "none").exists()


# assay compare, of stored runs


def test_compare_of_stored_runs(tmp_path):
    """Two runs of the same code: exit 0; one kernel a fifth slower: exit 1, and it is named."""
    runs = [Results(tmp_path, CONDITIONS) for _ in range(3)]
    for seed, (results, slower) in enumerate(zip(runs, (1.0, 1.0, 1.2), strict=True)):
        results.add(*kernels_of_a_run(seed, {"op3": slower}))
    a, b, c = (results.run for results in runs)
    done = assay(tmp_path, "compare", a, b)
    assert done.returncode == 0, done.stdout
    assert "0 slower, 0 faster, 20 same" in done.stdout
    assert f"A is {a}, B is {b}" in done.stdout
    done = assay(tmp_path, "compare", a, c, "--json")
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    slower = [row["case"] for row in found["cases"] if row["verdict"] == "slower"]
    assert slower == ["op3/cpu hot"]


# Nonsense

NONSENSE = {
    "no repetitions": ("bench story -r 0", 2, "--repetitions is at least 1, got 0"),
    "prompts of letters": ("bench story -p abc", 2, "-p wants numbers of at least 0; got 'abc'"),
    "less than no prompt": ("bench story -p -1", 2, "-p wants numbers of at least 0; got '-1'"),
    "nothing to time": ("bench story -p 0 -n 0", 2, "nothing to time: give -p or -n tokens"),
    "beyond the model": ("bench story -p 1000", 1, "its context is 512 tokens, pp1000 wants 1000"),
    "deep beyond it": ("bench story -p 0 -n 9 -d 504", 1, "512 tokens, tg9 @ d504 wants 513"),
    "no sequences": ("bench story --npl 0", 2, "--npl wants numbers of at least 1; got '0'"),
    "a strange peer": ("bench story --peers gpt", 2, "no peer is called 'gpt': assay, assay fast"),
    "a strange model": ("bench nope", 1, "nope: no such file or embedded model"),
    "a model that is none": ("bench {bad} --peers none", 1, "header: this is not a GGUF file"),
    "a folder for a model": ("bench {folder} --peers none", 1, "this is not a file"),
    "a file for a folder": ("bench story -p 4 -n 0 --peers none --results {bad}", 1, "File exists"),
    "no place": ("bench story -p 4 -n 0 --peers none --results /proc/x/y", 1, "No such file"),
    "many threads": ("bench story -p 4 -n 0 --peers none -t 9999", 2, "-t must be 0 to 256"),
    "a batch of none": ("bench story -p 4 -n 0 --peers none -b 0", 2, "-b must be at least 1"),
    "a strange cache": ("bench story -p 4 -n 0 --peers none --kv Q9", 2, "want F32, F16"),
    "a strange mode": (
        "bench story -p 4 -n 0 --peers none --sparse maybe",
        2,
        "--sparse is 'maybe'",
    ),
    "no time": ("bench story --seconds nan", 2, "--seconds is 0 or more, got nan"),
    "a strange base": ("compare nonsense", 1, "nonsense: no stored run, commit or variant"),
    "a run that is none": ("compare {bad} {bad}", 1, "bad: line 1 is no result"),
    "two of two kinds": ("compare {bad} scalar", 1, "compare two of a kind"),
    "a strange op": ("compare scalar generic --op knit", 2, "there is no op 'knit': embedding"),
    "a strange format": ("compare scalar generic --format Q9", 1, "no such kernel runs here"),
    "a strange shape": ("compare scalar generic --models gpt", 1, "no model is called 'gpt'"),
    "a strange cache level": ("compare scalar generic --cache warm", 2, "--cache is cold or hot"),
    "no tokens": ("compare scalar generic --tokens 0", 2, "--tokens wants numbers of at least 1"),
    "threads below none": ("compare scalar generic --threads -2", 2, "--threads is 0 to 256"),
}


@pytest.fixture(name="told", scope="module")
def _told(tmp_path_factory):
    """What all of these say, from one process: its imports take longer than the answers."""
    folder = tmp_path_factory.mktemp("nonsense")
    (folder / "bad").write_text("no JSON\n")
    known = {"bad": folder / "bad", "folder": folder}
    asked = {n: shlex.split(line.format(**known)) for n, (line, _, _) in NONSENSE.items()}
    found = what_all_say(folder / "results", EVERY_ASSAY, asked)
    assert not list((folder / "results").glob("*")), "a run that measured nothing was kept"
    return found


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_one_line(told, name):
    """Wrong usage ends with 2, what cannot be done with 1; either says what is wrong, in a line."""
    code, out, err = told[name]
    _, wanted, line = NONSENSE[name]
    assert code == wanted, out + err
    assert not out
    said = [text for text in err.splitlines() if not text.startswith("note: a busy machine")]
    assert line in said[-1]
    assert len(said) == 1
    assert ("--help tells more" in said[0]) == (wanted == 2)


# Ctrl-C


@pytest.mark.parametrize(
    ("command", "children", "group"),
    [
        ("bench story -p 256 -n 128 -r 1000 --peers none", 1, True),
        ("compare generic scalar --all --op rms_norm --tokens 512", 3, False),
    ],
)
def test_an_interrupt_ends_all(tmp_path, command, children, group):
    """Ctrl-C in the middle: one plain line, exit 1, and no process is left."""
    code, out, err = interrupted(tmp_path, (*ASSAY, *command.split()), children, group)
    said = [text for text in err.splitlines() if not text.startswith("note: a busy machine")]
    assert (code, out, said) == (1, "", ["assay: interrupted"])
