"""Models within a budget: ways raced in small, figures of what is known, and the page."""

import json
import os
import signal
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import bench.offload_speed as offload_speed
from bench.offload import race
from bench.offload import way as ways
from bench.offload.race import Field, Subject, beside_the_disk, folders, settings
from bench.offload.way import About, Process, Way
from bench.quality import stories
from bench.race.experiment import Racing, Rule
from bench.race.results import Measurement, read
from bench.report.offload import Race, section
from bench.tests.support.programs import main_of
from bench.tests.support.synthetic import rows_of, shown
from engine.embedded import resolve
from engine.gguf.file import GGUFFile
from engine.tokenizer import Tokenizer

TWICE = Racing(Rule(least=2, most=2))
NEURON, TINY = 4096, "tiny"
SUBJECT = Subject(Path("some.gguf"), 2, 1_000_000_000, 300, sparse=False, counted=4)


@pytest.fixture(name="kept", scope="module")
def _kept():
    with folders() as kept:
        yield kept


@pytest.fixture(name="subject", scope="module")
def _subject(sparse_model):
    return Subject.of(sparse_model, threads=1, large=2, small=3)


@pytest.fixture(name="field", scope="module")
def _field(subject, kept):
    """Ways of every kind, opened."""
    of_neurons = (ways.PREDICTOR, ways.WINDOW, ways.BUNDLE)
    paper = ways.paper(subject.weights, 1.1, NEURON)
    chosen = [*ways.dense(subject.weights, 0.6, limited=False),
              *(way for way in paper if way.name in of_neurons),
              Way(TINY, Process(budget=4096, sparse=ways.OFF))]  # fmt: skip
    with ExitStack() as stack:
        field = Field(subject, chosen, kept, "any", stack)
        assert not field.notes
        yield field


@pytest.fixture(name="rows", scope="module")
def _rows(field):
    return field.race(TWICE)


@pytest.fixture(name="raced", scope="module")
def _raced(rows):
    return Race(rows_of(*rows))


def test_a_race_in_small(subject, field, raced):
    """Each way reads what it must: the whole file, what does not stay in memory, nothing."""
    assert all(len(raced.samples(name)) == 2 for name in field.abouts)
    about = field.abouts[ways.STREAMED]
    each, resident = about.streamed, about.resident
    assert each > 0
    assert resident > 0
    assert each + resident < subject.weights
    assert each + resident <= raced.median(ways.NAIVE, race.BYTES) < 1.1 * (each + resident)
    assert raced.median(ways.IN_MEMORY, race.BYTES) == 0
    # what is read ahead when a sample begins and when it ends differs by less than a step's weights
    moved = raced.samples(ways.STREAMED, race.BYTES)
    assert (abs(moved - each) < each / subject.counted).all()
    seconds, reading, waiting = (
        {name: raced.median(name, part) for name in field.abouts}
        for part in ("run", race.READING, race.WAITING)
    )
    assert 0 < reading[ways.STREAMED] <= seconds[ways.STREAMED]
    assert 0 <= waiting[ways.STREAMED] <= seconds[ways.STREAMED]
    assert 0 < reading[ways.NAIVE] <= waiting[ways.NAIVE] < seconds[ways.NAIVE]
    assert 0 < waiting[ways.OVERLAPPED] < seconds[ways.OVERLAPPED]


def test_windows_and_bundles_in_small(field, raced):
    """A window finds neurons that nobody finds without one, and a bundle is one read for three."""
    names = (ways.PREDICTOR, ways.WINDOW, ways.BUNDLE)
    predictor, window, bundle = (field.abouts[name] for name in names)
    assert raced.hit_rate(ways.PREDICTOR) == 0
    assert raced.hit_rate(ways.WINDOW) > 0.1
    for part in (race.MISSED, race.BYTES):
        assert raced.median(ways.WINDOW, part) < raced.median(ways.PREDICTOR, part)
    assert not len(raced.samples(ways.STREAMED, race.FOUND))
    assert predictor.neuron == window.neuron < bundle.neuron < 4 * window.neuron


def test_a_budget_too_small_is_absent(rows):
    """The others run, and the page says why."""
    (tiny,) = [row for row in rows if row.test == TINY]
    assert "too small for this model" in tiny.note
    assert not tiny.samples
    notes = section(rows_of(*rows)).notes
    assert any("tiny is absent: a ram_budget" in note for note in notes)


def test_who_dies_is_absent(subject, kept, rows):
    """A child that is gone gives no samples, and its way says so; the others go on."""
    process = Process(ways.DISK, sparse=ways.OFF)
    other = Way("other", replace(process, scattered=NEURON))
    with ExitStack() as stack:
        field = Field(subject, [Way(ways.IN_A_ROW, process), other], kept, "any", stack)
        os.kill(field._children[process].pid, signal.SIGKILL)
        found = {row.test: row for row in field.race(TWICE) if row.phase == "run"}
    assert "SIGKILL" in found[ways.IN_A_ROW].note
    assert (len(found[ways.IN_A_ROW].samples), len(found["other"].samples)) == (0, 2)


def test_what_is_sampled(subject, sparse_model):
    """A model is known by its file. Tokens are the same for all: random, or of a story from its
    first token on; fresh for each sample."""
    with GGUFFile(sparse_model) as file:
        assert subject.weights == sum(t.n_bytes for t in file.tensors.values())
    assert (subject.alone, subject.sparse, subject.vocab) == (True, True, 300)
    assert not SUBJECT.alone
    assert subject.tokens(3) == subject.tokens(3) != subject.tokens(4)
    assert len(subject.tokens(0)) == subject.length == subject.uncounted + 3
    story = Subject.of(resolve("story-relu"), 1, large=2, small=48)
    assert {len(story.tokens(n)) for n in range(300)} == {story.length}
    assert len({story.tokens(n)[0] for n in range(5)}) == 1  # BOS
    assert story.tokens(0) != story.tokens(1)
    with GGUFFile(story.path) as file:
        tokenizer = Tokenizer.from_metadata(file.metadata)
    assert stories()[0].startswith(tokenizer.decode(story.tokens(0)[1:]).strip())


def known(name, seconds, n_bytes, reading):
    """Rows of a way whose samples are all alike."""
    row = Measurement(race.BENCH, name, shape="dense", model="some.gguf", threads=2, rivals="one")
    parts = {"run": (seconds, "s"), race.BYTES: (n_bytes, "B"), race.READING: (reading, "s")}
    return [
        replace(
            row, phase=phase, samples=(value,) * 3, unit=unit, tokens=int(name != ways.IN_A_ROW)
        )
        for phase, (value, unit) in parts.items()
    ]


def contest(streamed=0.3):
    """A disk of 2 GB/s, 1 GB of weights, half of them streamed in a budget of 600 MB."""
    told = settings(Process(budget=600_000_000), About(resident=500_000_000, streamed=500_000_000))
    return beside_the_disk([
        *known(ways.NAIVE, 0.6, 1e9, 0.5),
        *known(ways.IN_MEMORY, 0.1, 0, 0),
        *(replace(row, settings=told) for row in known(ways.STREAMED, streamed, 5e8, 0.25)),
        replace(known(ways.LLAMA_CPP, 1, 0, 0)[0], samples=(), note="killed by the system"),
        *known(ways.IN_A_ROW, 0.05, 1e8, 0.05),
    ])  # fmt: skip


def test_figures_of_a_race():
    """Twice as fast as naive; the disk is at its limit while it reads, 5/6 of the time."""
    raced = Race(rows_of(*contest()))
    faster = raced.faster(ways.STREAMED, ways.NAIVE)
    assert faster
    assert (faster.value, faster.low, faster.high) == pytest.approx((2, 2, 2))
    busy, always = (raced.of_disk(ways.STREAMED, part) for part in (race.READING, "run"))
    assert busy
    assert always
    assert (busy.value, always.value) == pytest.approx((1, 5 / 6))
    assert raced.bound(ways.STREAMED, ways.IN_A_ROW) == pytest.approx(0.25)
    assert raced.bound(ways.IN_MEMORY, ways.IN_A_ROW) == pytest.approx(0.1)  # it is computed too
    assert raced.faster(ways.STREAMED, ways.LLAMA_CPP) is None
    assert raced.faster(ways.STREAMED, ways.STREAMED) is None


def test_rows_are_held_against_the_disk():
    """Bytes, what it ran with, and the disk's best stand in each way's row; faster than reading
    them in a row takes is impossible."""
    rows = {row.test: row for row in contest() if row.phase == "run"}
    streamed = rows[ways.STREAMED]
    assert streamed.settings == "budget=600.0MB,resident=500.0MB,streamed=500.0MB"
    assert (streamed.bytes, streamed.limit, streamed.tokens) == (5e8, "disk", 1)
    assert streamed.share == pytest.approx(5 / 6)
    assert not any(row.impossible for row in rows.values())
    (fast, *_) = [row for row in contest(0.1) if row.test == ways.STREAMED]
    assert "250% of the limit (disk)" in fast.impossible
    about = About(resident=200_000, streamed=0, pool=700_000, kept=0.345)
    told = settings(Process(budget=1_000_000, sparse=ways.ON), about)
    assert told == "budget=1.0MB,resident=0.2MB,streamed=0.0MB,pool=0.7MB,kept=34%"


def test_the_section():
    """A table for each race, its budgets, ratios and shares beside its ways; below it the disk, and
    who is absent. A race without a disk or naive loading is compared with neither."""
    curve = [
        replace(row, shape="curve dense", rivals="two")
        for row in contest()
        if row.test in (ways.IN_MEMORY, ways.STREAMED)
    ]
    found = section(rows_of(*contest(), *curve))
    dense, other = found.tables
    assert (dense.caption, other.caption) == (
        "some: dense, on 2 threads", "some: curve dense, on 2 threads"
    )  # fmt: skip
    assert dense.columns == (
        "Way", "Budget", "ms a token", "Times naive", "MB a token", "GB/s reading", "ms reading",
        "Of the disk, reading", "Of the disk, always",
    )  # fmt: skip
    streamed = shown(dense)[2]
    assert streamed == [
        ways.STREAMED, "600.0MB", "300", "2.00 [2.00, 2.00]", "500", "2.00", "250",
        "100% [100%, 100%]", "83% [83%, 83%]",
    ]  # fmt: skip
    assert shown(dense)[0][3] == "—"
    assert "Times naive" not in other.columns
    assert found.notes[:3] == (
        "some: dense: the disk reads in a row at 2.00 GB/s [2.00, 2.00].",
        "some: dense: streamed: budget 600.0MB, resident 500.0MB, streamed 500.0MB.",
        "some: dense: llama.cpp is absent: killed by the system.",
    )


def test_the_program(sparse_model, tmp_path, monkeypatch, capsys):
    """It races each model, writes the page and keeps rows; --quick keeps none. What it prints for
    programs are figures, and nulls where there are none."""
    asked = []

    def few(path, *rest):
        asked.append(path)
        yield contest()

    monkeypatch.setattr(offload_speed, "races", few)
    monkeypatch.setenv("ASSAY_RESULTS", str(tmp_path / "results"))
    run = partial(main_of, monkeypatch, offload_speed)
    assert run(str(sparse_model), "story-relu", "-o", str(tmp_path / "page.md")) == 0
    assert asked == [sparse_model, resolve("story-relu")]
    assert "streamed" in capsys.readouterr().out
    (kept,) = (tmp_path / "results").glob("*.jsonl")
    assert len(read(kept).measurements) == 2 * len(contest())
    assert run(str(sparse_model), "--quick", "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)
    rows = {row["Way"]: row for row in told["rows"]}
    assert rows[ways.STREAMED]["Times naive"] == pytest.approx(2)
    assert rows[ways.NAIVE]["Budget"] is None
    assert len(list((tmp_path / "results").glob("*.jsonl"))) == 1
