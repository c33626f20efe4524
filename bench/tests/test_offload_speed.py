"""Models within a budget: ways raced in small, figures of what is known, and the page."""

import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bench.offload_speed as offload_speed
from bench.offload import contests, page
from bench.offload.contest import Contest, settings
from bench.offload.race import Field, Folders, Outcome, Subject, folders
from bench.offload.way import DISK, LLAMA_CPP, NO_WINDOW, About, Process, Sample, Way
from bench.report.offload import section
from bench.results import Measurement, Results, read
from bench.tests.synthetic import CONDITIONS
from bench.timing import Rule
from engine.embedded import resolve
from engine.gguf_file import GGUFFile

TWICE = Rule(least=2, most=2)
NEURON, TINY = 4096, "tiny"
SUBJECT = Subject(Path("some.gguf"), 2, 1_000_000_000, 300, sparse=False, counted=4)


@pytest.fixture(name="kept", scope="module")
def _kept() -> Iterator[Folders]:
    with folders() as kept:
        yield kept


@pytest.fixture(name="subject", scope="module")
def _subject(sparse_model: Path) -> Subject:
    return Subject.of(sparse_model, threads=1, large=2, small=3)


@pytest.fixture(name="raced", scope="module")
def _raced(subject: Subject, kept: Folders) -> dict[str, Outcome]:
    """Ways of every kind in one race, by name."""
    of_neurons = (contests.PREDICTOR, contests.WINDOW, contests.BUNDLE)
    paper = contests.paper(subject, 1.1, NEURON)
    ways = [*contests.dense(subject, 0.6), *(way for way in paper if way.name in of_neurons)]
    ways.append(Way(TINY, Process(budget=4096, sparse=contests.OFF)))
    with Field(subject, ways, kept) as field:
        assert not field.notes
        return {outcome.way.name: outcome for outcome in field.race(TWICE)}


def test_a_race_in_small(subject: Subject, raced: dict[str, Outcome]) -> None:
    """Each way reads what it must: the whole file, what does not stay in memory, nothing."""
    assert all(len(o.samples) == 2 and not o.absent for n, o in raced.items() if n != TINY)
    streamed, naive = raced[contests.STREAMED], raced[contests.NAIVE]
    each, resident = streamed.about.streamed, streamed.about.resident
    assert each > 0
    assert resident > 0
    assert each + resident < subject.weights
    assert each + resident <= naive.median("bytes") < 1.1 * (each + resident)
    assert raced[contests.IN_MEMORY].median("bytes") == 0
    # what is read ahead when a sample begins and when it ends differs by less than a step's weights
    assert all(abs(s.bytes - each) < each / subject.counted for s in streamed.samples)
    assert 0 < streamed.median("busy") <= streamed.median("seconds")
    assert 0 <= streamed.median("waited") <= streamed.median("seconds")
    assert 0 < naive.median("busy") <= naive.median("waited") < naive.median("seconds")
    overlapped = raced[contests.OVERLAPPED]
    assert 0 < overlapped.median("waited") < overlapped.median("seconds")


def test_windows_and_bundles_in_small(raced: dict[str, Outcome]) -> None:
    """A window finds neurons that nobody finds without one, and a bundle is one read for three."""
    names = (contests.PREDICTOR, contests.WINDOW, contests.BUNDLE)
    predictor, window, bundle = (raced[name] for name in names)
    assert predictor.hit_rate == 0
    assert window.hit_rate > 0.1
    assert window.median("misses") < predictor.median("misses")
    assert window.median("bytes") < predictor.median("bytes")
    assert window.about.neuron < bundle.about.neuron < 4 * window.about.neuron


def test_a_budget_too_small_is_absent(subject: Subject, raced: dict[str, Outcome]) -> None:
    """The others run, and the page says why."""
    tiny = raced[TINY]
    assert "too small for this model" in tiny.absent
    assert not tiny.samples
    told = page.remarks(Contest("any", subject, list(raced.values())))
    assert any(line.startswith("tiny is absent: a ram_budget") for line in told)


def test_who_dies_is_absent_from_then_on(
    subject: Subject, kept: Folders, raced: dict[str, Outcome]
) -> None:
    """A child that is gone gives no samples; its way says so and keeps what it had."""
    way = raced[contests.IN_A_ROW].way
    other = Way("other", replace(way.process, scattered=NEURON))
    with Field(subject, [way, other], kept) as field:
        field.race(TWICE)
        os.kill(field._children[way.process].pid, signal.SIGKILL)
        gone, alive = field.race(TWICE)
    assert "SIGKILL" in gone.absent
    assert (len(gone.samples), len(alive.samples)) == (2, 4)


def test_tokens_are_the_same_for_all(subject: Subject) -> None:
    """Random, or of a story from its first token on; fresh for each sample."""
    assert subject.tokens(3) == subject.tokens(3) != subject.tokens(4)
    assert len(subject.tokens(0)) == subject.length == subject.uncounted + 3
    story = Subject.of(resolve("story-relu"), 1, large=2, small=48)
    assert story.texts
    assert {len(story.tokens(n)) for n in range(300)} == {story.length}
    assert len({story.tokens(n)[0] for n in range(5)}) == 1  # BOS
    assert story.tokens(0) != story.tokens(1)


def samples(seconds: list[float], n_bytes: float, busy: float = math.nan) -> list[Sample]:
    return [Sample(s, n_bytes, busy, s) for s in seconds]


def outcome(
    name: str, process: Process, found: list[Sample], about: About | None = None
) -> Outcome:
    return Outcome(Way(name, process), about or About(), found)


@pytest.fixture(name="contest")
def _contest() -> Contest:
    """A disk of 2 GB/s, 1 GB of weights, half of them streamed in a budget of 600 MB."""
    streamed = Process(budget=600_000_000, limited=True)
    about = About(resident=500_000_000, streamed=500_000_000)
    killed = outcome(LLAMA_CPP, Process(LLAMA_CPP, 600_000_000, limited=True), [])
    killed.absent = "killed by the system: more than 600 MiB of memory"
    return Contest(
        "dense",
        SUBJECT,
        [
            outcome(contests.NAIVE, Process(), samples([0.6, 0.6, 0.6], 1e9, 0.5)),
            outcome(contests.IN_MEMORY, Process(), samples([0.1, 0.1, 0.1], 0, 0)),
            outcome(contests.STREAMED, streamed, samples([0.3, 0.3, 0.3], 5e8, 0.25), about),
            killed,
            outcome(contests.IN_A_ROW, Process(DISK), samples([0.05, 0.05, 0.05], 1e8, 0.05)),
        ],
    )


def test_figures_of_a_contest(contest: Contest) -> None:
    """Twice as fast as naive; the disk is at its limit while it reads, 5/6 of the time."""
    streamed = contest.find(contests.STREAMED)
    assert streamed
    faster = contest.faster(streamed, contests.NAIVE)
    assert faster
    assert (faster.value, faster.low, faster.high) == pytest.approx((2, 2, 2))
    busy, always = (contest.of_disk(streamed, busy=each) for each in (True, False))
    assert busy
    assert always
    assert (busy.value, always.value) == pytest.approx((1, 5 / 6))
    assert contest.best() == pytest.approx(2e9)
    assert contest.bound(streamed) == pytest.approx(0.25)
    assert contest.bound(replace_bytes(streamed, 1e6)) == pytest.approx(0.1)  # it is computed too
    assert contest.faster(streamed, LLAMA_CPP) is None
    assert contest.faster(streamed, contests.STREAMED) is None
    assert streamed.rate == pytest.approx(2e9)
    assert math.isnan(streamed.hit_rate)


def replace_bytes(found: Outcome, n_bytes: float) -> Outcome:
    return replace(found, samples=[replace(s, bytes=n_bytes) for s in found.samples])


def test_rows_for_the_results(contest: Contest, tmp_path: Path) -> None:
    """A row a way, with its budget and where its weights were; who is absent says why."""
    kept = Results(tmp_path, CONDITIONS)
    kept.add(*contest.measurements())
    rows = {row.test: row for row in read(kept.path).measurements}
    assert list(rows) == [o.way.name for o in contest.outcomes]
    streamed = rows[contests.STREAMED]
    assert streamed.settings == "budget=600.0MB,resident=500.0MB,streamed=500.0MB"
    assert (streamed.bench, streamed.shape, streamed.model) == ("offload", "dense", "some.gguf")
    assert (streamed.bytes, streamed.limit, streamed.tokens) == (5e8, "disk", 1)
    assert streamed.share == pytest.approx(5 / 6)
    assert not any(row.impossible for row in rows.values())
    assert (rows[LLAMA_CPP].contender, rows[LLAMA_CPP].samples) == (LLAMA_CPP, ())
    assert rows[LLAMA_CPP].note.startswith("killed")
    assert rows[contests.IN_A_ROW].bytes / rows[contests.IN_A_ROW].median == pytest.approx(2e9)
    assert len({row.rivals for row in rows.values()}) == 1


def test_the_reports_section(contest: Contest, tmp_path: Path) -> None:
    """A table for each race, its budgets, ratios and shares beside its ways; below it the disk, and
    who is absent. A race without a disk or naive loading is compared with neither."""
    kept = Results(tmp_path, CONDITIONS)
    curve = Contest("curve dense", SUBJECT, contest.outcomes[1:3])
    kept.add(*contest.measurements(), *curve.measurements())
    found = section(read(kept.path))
    dense, other = found.tables
    assert (dense.caption, other.caption) == (
        "some: dense, on 2 threads", "some: curve dense, on 2 threads"
    )  # fmt: skip
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in dense.rows}
    assert rows == {
        contests.NAIVE: ["—", "600", "—", "1,000", "83%"],
        contests.IN_MEMORY: ["—", "100", "6.00 [6.00, 6.00]", "—", "—"],
        contests.STREAMED: ["600.0MB", "300", "2.00 [2.00, 2.00]", "500", "83%"],
    }
    assert [(row[3].text, row[5].text) for row in other.rows] == [("—", "—")] * 2
    assert found.notes == (
        "some: dense: the disk reads in a row at 2.00 GB/s.",
        "some: dense: llama.cpp is absent: killed by the system: more than 600 MiB of memory.",
    )


def test_a_row_faster_than_the_disk_is_impossible(contest: Contest) -> None:
    """More bytes in less time than reading them in a row takes cannot be."""
    streamed = contest.find(contests.STREAMED)
    assert streamed
    streamed.samples[:] = samples([0.1, 0.1, 0.1], 5e8, 0.1)
    row: Measurement = next(r for r in contest.measurements() if r.test == contests.STREAMED)
    assert "250% of the limit (disk)" in row.impossible


def test_settings_of_neurons() -> None:
    process = Process(budget=1_000_000, sparse=contests.ON)
    about = About(resident=200_000, streamed=0, pool=700_000, kept=0.345)
    told = settings(outcome(contests.BUNDLE, process, [], about))
    assert told == "budget=1.0MB,resident=0.2MB,streamed=0.0MB,pool=0.7MB,kept=34%"


def test_the_page(contest: Contest, tmp_path: Path) -> None:
    """Tables, a plot for each curve, and a line for who is absent."""
    ways = [
        outcome(contests.at(share), Process(budget=int(share * 1e9)), samples([s, s, s], 1e8, s))
        for share, s in ((0.2, 0.4), (0.6, 0.2))
    ]
    curve = Contest("curve dense", SUBJECT, [*ways, *contest.outcomes[1:2], contest.outcomes[-1]])
    page.write([contest, curve], CONDITIONS, tmp_path / "offload.md")
    text = (tmp_path / "offload.md").read_text()
    (plot,) = tmp_path.glob("*.svg")
    assert f"![curve dense]({plot.name})" in text
    assert "| streamed | 300 | 2.00 [2.00, 2.00] |" in text
    assert "llama.cpp is absent: killed by the system" in text
    assert "The disk reads in a row at 2.00 GB/s [2.00, 2.00]." in text
    assert "times llama.cpp" not in text  # who is absent is compared with nobody
    drawn = page.drawing(curve).axes[0]
    measured, allowed = (
        line.get_ydata() for line in drawn.get_lines()[:1] + drawn.get_lines()[-1:]
    )
    assert list(measured) == pytest.approx([2.5, 5])
    assert np.all(np.array(allowed) > measured)


def test_json_is_of_numbers_alone(contest: Contest) -> None:
    """No NaN, which is not JSON; nulls where there is nothing."""
    told = json.loads(json.dumps(page.as_dict(contest), allow_nan=False))
    ways = {way["way"]: way for way in told["ways"]}
    assert ways[contests.STREAMED]["times_naive"] == pytest.approx([2, 2, 2])
    assert ways[LLAMA_CPP]["seconds"] is None
    assert (told["weights"], told["kind"]) == (1_000_000_000, "dense")


def test_the_program(
    contest: Contest,
    sparse_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It races each model, writes the page and keeps rows; --quick keeps none."""
    asked = []

    def few(path: Path, *rest: object) -> Iterator[Contest]:
        asked.append(path)
        yield contest

    monkeypatch.setattr(offload_speed, "contests", few)
    monkeypatch.setenv("ASSAY_RESULTS", str(tmp_path / "results"))
    run = run_main(monkeypatch)
    assert run(str(sparse_model), "story-relu", "-o", str(tmp_path / "page.md")) == 0
    assert asked == [sparse_model, resolve("story-relu")]
    assert "streamed" in capsys.readouterr().out
    (kept,) = (tmp_path / "results").glob("*.jsonl")
    assert len(read(kept).measurements) == 2 * len(contest.outcomes)
    assert run(str(sparse_model), "--quick", "--json") == 0
    assert json.loads(capsys.readouterr().out)[0]["kind"] == "dense"
    assert len(list((tmp_path / "results").glob("*.jsonl"))) == 1


def run_main(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["offload_speed", *words])
        return offload_speed.main()

    return run


@pytest.mark.parametrize(
    ("words", "told"),
    [(["none.gguf"], "none.gguf"), (["story-relu", "-o", "/nowhere/page.md"], "/nowhere: no such")],
)
def test_bad_input_is_one_line(
    words: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_main(monkeypatch)(*words, "--quick") == 1
    err = capsys.readouterr().err.strip()
    assert told in err
    assert "\n" not in err


def test_which_ways(subject: Subject) -> None:
    """llama.cpp only where a limit means something; of a sparse model the table of the paper, each
    way with one thing more; budgets are shares of the weights."""
    large = contests.dense(SUBJECT, 0.5)
    (peer,) = [way for way in large if way.process.who == LLAMA_CPP]
    assert peer.process.limited
    assert peer.process.budget == SUBJECT.weights // 2
    assert not any(way.process.limited for way in contests.dense(subject, 0.5))
    ways = {way.name: way.process for way in contests.paper(subject, 0.5, 4096)}
    names = (contests.HYBRID, contests.PREDICTOR, contests.WINDOW, contests.BUNDLE)
    told = [(p.sparse, p.window, p.bundles) for p in (ways[name] for name in names)]
    assert told[1:] == [("on", NO_WINDOW, False), ("on", None, False), ("on", None, True)]
    assert told[0][0] == "off"
    assert {ways[name].budget for name in names} == {subject.weights // 2}
    budgets = [w.process.budget for w in contests.curve(SUBJECT, (0.2, 1.0), contests.OFF)]
    assert budgets[:2] == [200_000_000, 1_000_000_000]


def test_a_small_model_is_known(subject: Subject, sparse_model: Path) -> None:
    with GGUFFile(sparse_model) as file:
        assert subject.weights == sum(t.n_bytes for t in file.tensors.values())
    assert (subject.alone, subject.sparse, subject.vocab) == (True, True, 300)
    assert not SUBJECT.alone
