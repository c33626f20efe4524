"""Results files are append-only, and invalid lines are reported by file and number; data frames
hold their contents, one row a sample."""

import json
import math
import os
import resource
from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from bench.race import frames
from bench.race.results import (
    Measurement,
    Results,
    ResultsError,
    find,
    is_stored,
    read,
    read_folder,
)
from bench.tests.support.synthetic import CONDITIONS, LIMITS

FULL = Measurement(
    bench="op", test="linear", contender="assay", target="cpu", variant="generic", format="Q4_0",
    shape="tokens=1,hidden=32,out=64", model="tinyllama-1.1b, „Löwe\u2028\n", threads=2,
    cache="cold", phase="run", settings="sparse=on", samples=(0.1 + 0.2, 1e-9, 3.0, 0.0), tokens=7,
    bytes=1.5, operations=2.5, limit="memory read", limit_seconds=0.25, limit_spread=0.125,
    kernel="abc", checked=3, rivals="r1", note="a note", unit="NMSE",
)  # fmt: skip
PLAIN = Measurement("op", "add", samples=(1.0, 2.0, 4.0))


@pytest.fixture(name="written")
def _written(tmp_path):
    """A run of two measurements."""
    results = Results(tmp_path, CONDITIONS, LIMITS.to_json())
    results.add(FULL, PLAIN)
    return results.path


def test_every_field_returns(written):
    """Added rows are read back with all fields, samples bit for bit."""
    plain = Measurement("", "")
    assert not [f.name for f in fields(FULL) if getattr(FULL, f.name) == getattr(plain, f.name)
                and f.name not in ("contender", "phase")]  # fmt: skip
    run = read(written)
    assert run.measurements == (FULL, PLAIN)
    assert run.conditions == CONDITIONS
    assert run.limits == json.loads(json.dumps(LIMITS.to_json()))
    assert (run.path, run.run) == (written, written.stem)


def test_only_appended(tmp_path):
    """After every step the earlier bytes are unchanged, and all can be read."""
    results = Results(tmp_path, CONDITIONS)
    before = results.path.read_bytes()
    for step in (
        lambda: results.add(PLAIN),
        lambda: results.raise_limits(LIMITS.to_json()),
        lambda: results.add(FULL, PLAIN),
        lambda: results.add(),
    ):
        step()
        after = results.path.read_bytes()
        assert after.startswith(before)
        read(results.path)
        before = after
    assert read(results.path).limits == json.loads(json.dumps(LIMITS.to_json()))


def test_one_write_a_line(tmp_path, monkeypatch):
    """A line is written in one call, so that an interruption leaves whole lines."""
    written, real = [], os.write
    monkeypatch.setattr(os, "write", lambda fd, data: written.append(data) or real(fd, data))
    results = Results(tmp_path, CONDITIONS)
    results.add(FULL, PLAIN)
    assert b"".join(written) == results.path.read_bytes()
    assert [data.count(b"\n") for data in written] == [1, 1, 1]
    assert all(data.endswith(b"\n") for data in written)


def test_a_full_disk_leaves_whole_lines(tmp_path):
    """A line that does not fit is reported, and earlier ones stay readable."""
    results = Results(tmp_path, CONDITIONS)
    results.add(PLAIN)
    before = results.path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for room in (20, 0):
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, limits[1]))
            with pytest.raises(OSError, match=results.path.name):
                results.add(FULL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert results.path.read_bytes() == before
    results.add(FULL)
    assert read(results.path).measurements == (PLAIN, FULL)


@pytest.mark.parametrize("keep", [0.2, 0.6, 0.999])
def test_a_cut_line_is_named(written, keep):
    """A file that ends within a line: the line is named."""
    data = written.read_bytes()
    written.write_bytes(data[: int(len(data) * keep)])
    lines = written.read_bytes().count(b"\n") + 1
    with pytest.raises(ResultsError, match=f"{written}: line {lines} is no result"):
        read(written)


MESSES = {
    "a list": "[]",
    "a number": "5",
    "null": "null",
    "no kind": "{}",
    "a strange kind": '{"kind": "poem"}',
    "a second run": '{"kind": "run", "run": "x", "when": "y", "conditions": {}, "limits": {}}',
    "an unknown field": json.dumps(PLAIN.to_json() | {"colour": "red"}),
    "a missing field": '{"kind": "measurement", "bench": "op", "samples": []}',
    "no samples field": '{"kind": "measurement", "bench": "op", "test": "add"}',
    "a NaN": json.dumps(PLAIN.to_json() | {"samples": [float("nan")]}),
    "an infinity": json.dumps(PLAIN.to_json() | {"samples": [float("inf")]}),
    "a negative time": json.dumps(PLAIN.to_json() | {"samples": [-1.0]}),
    "samples of text": json.dumps(PLAIN.to_json() | {"samples": ["1.0", "many"]}),
    "samples in one text": json.dumps(PLAIN.to_json() | {"samples": "123"}),
    "threads of text": json.dumps(PLAIN.to_json() | {"threads": "two"}),
    "bytes of nothing": json.dumps(PLAIN.to_json() | {"bytes": None}),
    "infinite bytes": json.dumps(PLAIN.to_json() | {"bytes": float("inf")}),
    "a test of number": json.dumps(PLAIN.to_json() | {"test": 5}),
    "an abyss": "[" * 100_000,
    "limits of nothing": '{"kind": "limits", "limits": 5}',
    "an empty line": "",
}


@pytest.mark.parametrize("mess", MESSES)
def test_a_strange_line_is_named(written, mess):
    """Any line that is no result: one line with file and place."""
    with written.open("a") as file:
        file.write(MESSES[mess] + "\n")
    with pytest.raises(ResultsError) as caught:
        read(written)
    assert str(caught.value).startswith(f"{written}: line 4 is no result: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


DATE = "2026-11-21T10:00:00+00:00"
KNOWN = CONDITIONS.to_json()
ABOUT = {"kind": "run", "run": "x", "when": DATE, "limits": {}, "conditions": KNOWN}
HEADERS = {
    "a measurement first": FULL.to_json(),
    "conditions of nothing": ABOUT | {"conditions": {}},
    "no date": ABOUT | {"when": "some day"},
    "no time zone": ABOUT | {"when": DATE[:-6]},
    "a load of text": ABOUT | {"conditions": KNOWN | {"load": "much"}},
    "no limits": ABOUT | {"limits": None},
}
FILES = {name: (json.dumps(header).encode(), "line 1 is no result: .+")
         for name, header in HEADERS.items()}  # fmt: skip
FILES |= {
    "an empty file": (b"", "no results in it"),
    "a program": (b"\x7fELF\xff\xfe\x00", "byte 4 is not valid UTF-8"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_strange_file_is_named(tmp_path, name):
    """One whose first line tells of no run, an empty one and a binary one: a line each."""
    data, told = FILES[name]
    path = tmp_path / "x.jsonl"
    path.write_bytes(data)
    with pytest.raises(ResultsError, match=rf"\A{path}: {told}\Z"):
        read(path)


def test_good_runs_come_through_bad_company(tmp_path, written):
    """A folder's valid runs by date, and a line for each other file."""
    older = Results(tmp_path, CONDITIONS).path
    first, *rest = older.read_text().splitlines()
    first = json.dumps(json.loads(first) | {"when": "2001-01-01T00:00:00+00:00"})
    older.write_text("\n".join([first, *rest]) + "\n")
    (tmp_path / "bad.jsonl").write_text("{")
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "notes.txt").write_text("no matter")
    runs, complaints = read_folder(tmp_path)
    assert [run.path for run in runs] == [older, written]
    assert len(complaints) == 2
    assert complaints[0].startswith(f"{tmp_path / 'bad.jsonl'}: line 1")
    assert complaints[1].startswith(f"{tmp_path / 'folder.jsonl'}: ")


def test_an_empty_folder_says_what_fills_it(tmp_path):
    """No folder, nothing in it, nothing good in it: one line that names the folder."""
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ResultsError, match=rf"\A{folder}: no .*pytest bench/ --benchmark"):
            read_folder(folder)
    (tmp_path / "bad.jsonl").write_text("{")
    with pytest.raises(ResultsError, match=rf"\A{tmp_path}: no results in it: .*line 1"):
        read_folder(tmp_path)


def test_a_run_is_found_by_what_people_call_it(tmp_path, written, monkeypatch):
    """By its file, its name, the file's name, a prefix, and as the latest."""
    other = Results(tmp_path, CONDITIONS).path
    first, *rest = other.read_text().splitlines()
    later = json.dumps(json.loads(first) | {"when": "2999-01-01T00:00:00+00:00"})
    other.write_text("\n".join([later, *rest]) + "\n")
    for name in (str(written), written.stem, written.name, written.stem[:-1]):
        assert is_stored(name, tmp_path)
        assert find(name, tmp_path).path == written
    assert find("latest", tmp_path).path == written  # the other has measured nothing
    with other.open("a") as file:
        file.write(json.dumps(PLAIN.to_json()) + "\n")
    assert find("latest", tmp_path).path == other
    monkeypatch.chdir(tmp_path)
    assert find(written.name, tmp_path / "elsewhere").measurements == (FULL, PLAIN)


@pytest.mark.parametrize("name", ["20", "nope", "", "/tmp/nope.jsonl", "**", "*", "[", "../x", "."])
def test_what_is_not_found_is_told(tmp_path, name):
    """An ambiguous prefix, or one of no run, in any case, is one line."""
    for _ in range(2):
        Results(tmp_path, CONDITIONS)
    told = "2 runs begin so" if name == "20" else "no such run"
    assert is_stored(name, tmp_path) == (name == "20")
    with pytest.raises(ResultsError) as caught:
        find(name, tmp_path)
    assert str(caught.value) == f"{name}: {told} in {tmp_path}"


def test_runs_have_names_of_their_own(tmp_path):
    """Runs begun in the same second go to files of their own, outside a checkout too."""
    places = {Results(tmp_path, replace(CONDITIONS, commit="")).path for _ in range(8)}
    assert len(places) == 8
    assert all("-nogit-" in path.name for path in places)


def test_faster_than_the_machine_is_impossible():
    """A share above the limit, beyond its spread, is listed, and no page shows it; no samples and
    no limit are not."""
    limited = replace(PLAIN, limit="memory read", limit_seconds=2.1, limit_spread=0.1)
    assert limited.share == pytest.approx(1.05)
    assert not limited.impossible
    assert (limited.reached, replace(limited, limit_seconds=1.0).reached) == (1, 0.5)
    assert "150% of the limit (memory read)" in replace(limited, limit_seconds=3.0).impossible
    assert replace(limited, samples=(0.0,) * 3).impossible
    assert not replace(limited, samples=()).impossible
    assert not replace(limited, limit_seconds=0.0, samples=(0.0,)).impossible


def test_the_key_is_what_makes_runs_comparable():
    """Samples, costs and the machine's limits are not part of a case's key; what was run is."""
    same = ("samples", "tokens", "bytes", "operations", "limit", "limit_seconds", "limit_spread",
            "kernel", "checked", "rivals", "note", "unit", "model")  # fmt: skip
    for name, value in asdict(FULL).items():
        other = replace(FULL, **{name: (9.0,) if name == "samples" else value * 2})
        assert (other.key == FULL.key) == (name in same), name
    engine = replace(FULL, bench="engine")
    assert engine.key != replace(engine, model="another").key


ROWS = (
    Measurement("op", "add", samples=(3e-6, 1e-6, 2e-6), bytes=3e3, operations=1e3, threads=2,
                limit="memory read", limit_seconds=1e-6, cache="cold"),
    Measurement("engine", "tg16", model="m.gguf", samples=(0.5, 0.25), tokens=16, rivals="r"),
    Measurement("engine", "tg16", "llama.cpp", model="m.gguf", rivals="r", note="not installed"),
    Measurement("memory", "load", samples=(3e6, 5e6), unit="B", bytes=1e6, tokens=4),
)  # fmt: skip


@pytest.fixture(name="folder")
def _folder(tmp_path):
    Results(tmp_path, CONDITIONS, LIMITS.to_json()).add(*ROWS)
    return tmp_path


def test_one_row_a_sample(folder):
    """Every sample has a row, in order, with run, commit, device and its measurement's fields;
    absent contenders have one without a value, with the note. Measurements in bytes have no
    seconds."""
    frame, run = frames.load(str(folder)), read_folder(folder)[0][0]
    assert len(frame) == 3 + 2 + 1 + 2
    names = ("run", "commit", "device", "machine")
    about = [run.run, CONDITIONS.commit[:12], CONDITIONS.device, CONDITIONS.machine]
    assert [set(frame[name]) for name in names] == [{one} for one in about]
    assert str(frame.when.dt.tz) == "UTC"
    for row in ROWS:
        found = frame[(frame.test == row.test) & (frame.contender == row.contender)]
        for name in frames.KEYS[5:] + frames.FACTS:
            assert set(found[name]) == {getattr(row, name)}, name
        assert tuple(found.value.dropna()) == row.samples
        assert list(found["sample"]) == list(range(len(row.samples) or 1))
        assert found.seconds.notna().all() == (row.unit == "s" and bool(row.samples))


def test_rates_are_at_the_median(folder):
    """GB/s, GFLOP/s and tokens/s are cost over median; quartiles, mean and sd are NumPy's; other
    units than time have no rate."""
    table = frames.summary(frames.load(folder)).set_index(["test", "contender"])
    add, tg = table.loc[("add", "assay")], table.loc[("tg16", "assay")]
    assert add.gb_per_second == pytest.approx(1.5)
    assert add.gflop_per_second == pytest.approx(0.5)
    assert add.share == pytest.approx(0.5)
    assert (add.low, add.high, add["mean"]) == pytest.approx((1.5e-6, 2.5e-6, 2e-6))
    assert add.sd == pytest.approx(np.std([1e-6, 2e-6, 3e-6], ddof=1))
    assert tg.tokens_per_second == pytest.approx(16 / 0.375)
    assert math.isnan(tg.share)
    absent = table.loc[("tg16", "llama.cpp")]
    assert absent.samples == 0
    assert math.isnan(absent["median"])
    held = table.loc[("load", "assay")]
    assert (held["median"], held.unit, held.samples) == (4e6, "B", 2)
    assert np.isnan([held.tokens_per_second, held.gb_per_second]).all()


def test_runs_do_not_mix(folder):
    """The same measurement in two runs has a row for each; no runs give an empty frame with all its
    columns, and an empty summary."""
    Results(folder, replace(CONDITIONS, commit=""), {}).add(*ROWS)
    assert len(frames.summary(frames.load(folder))) == 2 * len(ROWS)
    frame = frames.of([])
    assert list(frame.columns) == [*frames.KEYS, *frames.FACTS, "sample", "value", "seconds"]
    assert not len(frames.summary(frame))
