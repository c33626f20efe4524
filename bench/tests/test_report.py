"""The report: what stands in it, and how it looks in a real browser."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bench import frames
from bench.report import history, ops, peers, planted, table, tuned
from bench.report.certified import Standing, Standings, passed, standings
from bench.report.lookup import Rated, family, possible
from bench.report.markdown import markdown
from bench.report.page import page
from bench.report.report import report
from bench.results import Measurement, Results, find, read_folder
from bench.tests import synthetic
from bench.tests.browser import chromium, complaints, show
from kernels.certificates import Certificate, Key, Store
from kernels.cuda import current
from kernels.cuda.device import EMULATED, DeviceError
from kernels.cuda.fusions import EVERY_CUDA
from kernels.cuda.table import CUDA_KERNELS
from kernels.planted import Planted, keep_planted, load_planted
from kernels.table import KERNELS
from kernels.table import find as find_kernel
from kernels.tuning import Tuned, starting

SIZES = {"phone": 360, "desk": 1280}
SCHEMES = ("light", "dark")
FAILED, UNTRIED = "linear/cpu/generic/F16", "silu/cpu/generic"
ON_GPU, UNTRIED_CUDA = "add/cuda/generic", "silu/cuda/generic"
BUGS = (
    Planted("linear", "no tail", "numba", "Q4_0", "cases", 1.5, "out[0] is 1"),
    Planted("linear", "no tail", "numba", "Q8_0", "shape", 2.5, "out[0] is 2"),
    Planted("relu", "a counter", "c", "", "", 0.5, ""),
)
TUNED = find_kernel("linear/cpu/generic/F16")
NEAR = starting(TUNED)["near"]
TUNINGS = tuple(
    Tuned(TUNED.name, "", "", 2, "hidden=64,out=64", {"near": near}, gain, spread, "2026-11-20")
    for near, gain, spread in ((NEAR, 1.0, (0.99, 1.02)), (1 - NEAR, 1.18, (1.1, 1.24)))
)
CONTRAST = 4.5  # WCAG 2.2, AA, of text

NUMBERS = """
  const rows = {};
  for (const row of document.querySelector(arguments[0]).tBodies[0].rows)
    rows[[...row.cells].slice(0, arguments[1]).map((c) => c.textContent).join(" | ")] =
      [...row.cells].map((c) => c.dataset.value === undefined ? null : Number(c.dataset.value));
  return rows;
"""
OVERLAPS = """
  const found = [];
  const inside = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const words = (e) => e.textContent.trim().slice(0, 30);
  const check = (elements, where) => {
    const boxes = elements.map((e) => [e, e.getBoundingClientRect()])
      .filter(([, box]) => box.width > 0 && box.height > 0);
    boxes.forEach(([a, first], i) => boxes.slice(i + 1).forEach(([b, second]) => {
      if (inside(first, second)) found.push(`${where}: ${words(a)} / ${words(b)}`);
    }));
  };
  const parents = "body, header, main, section, figure, ul, dl, dl div, thead, tbody, tr, li";
  for (const parent of document.querySelectorAll(parents))
    check([...parent.children], parent.tagName);
  for (const svg of document.querySelectorAll("svg")) {
    check([...svg.querySelectorAll("text")], svg.closest("figure").id);
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.bottom > frame.bottom + 2)
        found.push(`${svg.closest("figure").id}: ${text.textContent} is cut off`);
    }
  }
  return found;
"""
COLOURS = """
  const worded = "h1, h2 a, p, dt, dd, li, th, td, caption, a, summary, text";
  return [...document.querySelectorAll(worded)]
    .filter((e) => e.getBoundingClientRect().width > 0 && e.textContent.trim())
    .map((e) => {
      let behind = e;
      const ground = () => getComputedStyle(behind).backgroundColor;
      while (ground() === "rgba(0, 0, 0, 0)" && behind.parentElement)
        behind = behind.parentElement;
      const style = getComputedStyle(e);
      return [e.tagName === "text" ? style.fill : style.color,
        ground(), e.tagName + " " + e.className];
    });
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs on one machine, each faster than the one before."""
    made = tmp_path_factory.mktemp("results")
    for i, commit in enumerate(("a" * 40, "b" * 40, "c" * 40)):
        when = f"2026-11-{19 + i}T10:00:00+00:00"
        synthetic.write_run(made, when, commit, seed=i, pace=0.8 + 0.1 * i)
    return made


@pytest.fixture(scope="module")
def known() -> Standings:
    """All kernels certified but one that failed and one untried; those for a GPU by emulation, but
    one that a GPU has tried and one that nobody has."""

    def standing(name: str) -> Standing:
        failure = "token 3 is 7 times its bound away" if name == FAILED else ""
        found = Certificate(name, "", "deep", 240, 0.42, 1e-12, 1.0, "2026-11-20", failure)
        return Standing((), None if name == UNTRIED else found)

    def of_cuda(name: str) -> Standing:
        level, missing = ("quick", ()) if name == ON_GPU else (EMULATED, ("a GPU",))
        found = Certificate(name, "", level, 24, 0.21, 1e-12, 1.0, "2026-11-20")
        return Standing(missing, None if name == UNTRIED_CUDA else found)

    return {kernel.name: standing(kernel.name) for kernel in KERNELS} | {
        kernel.name: of_cuda(kernel.name) for kernel in EVERY_CUDA
    }


@pytest.fixture(scope="module")
def made(folder: Path, known: Standings) -> table.Report:
    runs, _ = read_folder(folder)
    return report(runs[-1], runs, known, BUGS, TUNINGS)


@pytest.fixture(scope="module")
def html(made: table.Report) -> str:
    return page(made)


@pytest.fixture(scope="module")
def shown(html: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html)
    return path


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def latest(folder: Path) -> Any:
    """What the frames say of the last run."""
    return frames.summary(frames.of([find("latest", folder)]))


def numbers(driver: Any, selector: str, names: int) -> Mapping[str, list[float]]:
    """A table's exact figures by its first cells."""
    found: Mapping[str, list[float]] = driver.execute_script(NUMBERS, selector, names)
    return found


def test_tables_hold_the_frames_speeds(driver: Any, shown: Path, latest: Any) -> None:
    """Every speed of the engine on the page is the frame's, for everyone who took part."""
    show(driver, shown, SIZES["desk"])
    page_has = numbers(driver, "#table-peers", 2)
    rated = latest[(latest.bench == "engine") & latest.test.str.fullmatch(r"(pp|tg)\d+( @ d\d+)?")]
    ours = rated[rated.contender == "assay"]
    assert len(page_has) == len(ours) == 16
    for column, contender in ((2, "assay"), (3, "llama.cpp")):
        for row in rated[rated.contender == contender].itertuples():
            name = f"{row.model.removesuffix('.gguf')} | {row.test}"
            assert page_has[name][column] == pytest.approx(row.tokens_per_second, rel=1e-12), name


def test_tables_hold_the_frames_kernels(driver: Any, shown: Path, latest: Any) -> None:
    """Time, GB/s, GFLOP/s and share of every kernel on the page are the frame's."""
    show(driver, shown, SIZES["desk"])
    page_has = {
        name: row
        for selector in ("#all-ops-decode", "#all-ops-prompt", "#all-ops-others")
        for name, row in numbers(driver, selector, 3).items()
    }
    mine = latest[(latest.bench == "op") & (latest.contender == "assay") & (latest.phase == "run")]
    possible = mine[mine.note == ""]
    assert len(page_has) == len(possible)
    for row in possible.itertuples():
        kernel = " ".join(filter(None, (row.test, row.variant, row.format)))
        shape = row.shape.replace(",", " ")
        if row.test == "linear":
            tokens, hidden, out = re.findall(r"\d+", shape)
            shape = f"{tokens} × {hidden} → {out}"
        cells = page_has[f"{kernel} | {shape} | {row.cache}"]
        rates = (row.median, row.gb_per_second, row.gflop_per_second, row.share)
        found = [cells[i] or 0.0 for i in (3, 4, 5, 7)]
        assert found == pytest.approx(rates, rel=1e-12), (kernel, shape)


def test_console_stays_silent(driver: Any, shown: Path) -> None:
    """The page loads, and its tables sort, without an error in the console."""
    show(driver, shown, SIZES["desk"])
    values = """
      const table = document.querySelector("#all-ops-decode");
      table.closest("details").open = true;
      const button = table.tHead.rows[0].cells[3].querySelector("button");
      for (let i = 0; i < arguments[0]; i++) button.click();
      return [...table.tBodies[0].rows].map((row) => Number(row.cells[3].dataset.value));
    """
    rising = driver.execute_script(values, 1)
    falling = driver.execute_script(values, 1)
    assert rising == sorted(rising)
    assert falling == rising[::-1]
    assert rising != falling
    assert complaints(driver) == []


@pytest.mark.parametrize("size", SIZES)
def test_nothing_overlaps(driver: Any, shown: Path, size: str) -> None:
    """No block lies over another and no text of a plot over another or beyond its edge."""
    show(driver, shown, SIZES[size])
    assert driver.execute_script("return document.querySelectorAll('svg text').length") > 100
    assert "\n".join(driver.execute_script(OVERLAPS)) == ""


@pytest.mark.parametrize("size", SIZES)
def test_page_never_scrolls_sideways(driver: Any, shown: Path, size: str) -> None:
    """Wide tables scroll within themselves, opened or not; the page does not."""
    show(driver, shown, SIZES[size])
    driver.execute_script("document.querySelectorAll('details').forEach((d) => d.open = true)")
    inner, whole = driver.execute_script(
        "return [window.innerWidth, document.documentElement.scrollWidth]"
    )
    assert inner == SIZES[size]
    assert whole <= inner


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_stands_out(driver: Any, shown: Path, scheme: str) -> None:
    """Light or dark, every text, those of plots too, has the contrast that WCAG asks for."""
    show(driver, shown, SIZES["desk"], scheme)
    found = driver.execute_script(COLOURS)
    backgrounds = {luminance(behind) for _, behind, _ in found}
    assert all(light > 0.8 if scheme == "light" else light < 0.05 for light in backgrounds)
    faint = {what for ink, behind, what in found if contrast(ink, behind) < CONTRAST}
    assert faint == set()


def luminance(colour: str) -> float:
    """Relative luminance of rgb(…), by WCAG."""
    channels = [int(word) / 255 for word in re.findall(r"[\d.]+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def test_page_needs_no_network(html: str) -> None:
    """Nothing in the page is fetched from anywhere."""
    loads = re.findall(r"""(?:src|href|url\(|@import)\s*=?\s*["']?([^"')\s>]+)""", html)
    assert {load for load in loads if not load.startswith(("#", "data:"))} == set()
    assert re.findall(r"https?://", html) == []


def test_page_stays_small(folder: Path, known: Standings) -> None:
    """2,000 measurements make a page of less than two megabytes."""
    run = find("latest", folder)
    many = [m for m in run.measurements if m.bench == "op"]
    more = [replace(m, shape=m.shape.replace("out=", "out=1")) for m in many] * 4
    large = replace(run, measurements=(*run.measurements, *more)[:2000])
    assert len(large.measurements) == 2000
    assert len(page(report(large, [large], known)).encode()) < 2e6


def test_names_are_not_markup(folder: Path, known: Standings) -> None:
    """A model's name cannot put an element into the page, its plots, or a column into Markdown."""
    run = find("latest", folder)
    evil = "<img src=x onerror=alert(1)>|$x_1$"
    renamed = [
        replace(m, model=evil if m.bench in ("engine", "node") else m.model)
        for m in run.measurements
    ]
    written = report(replace(run, measurements=tuple(renamed)), [run], known)
    assert "<img" not in page(written)
    assert "\\<img src=x onerror=alert(1)>\\|$x_1$" in markdown(written)


def test_an_absent_peer_is_shown(made: table.Report, html: str) -> None:
    """Who is absent stands in the table as absent, with the reason below it."""
    section = next(s for s in made.sections if s.anchor == "peers")
    i = section.tables[0].columns.index("transformers")
    assert {row[i].text for row in section.tables[0].rows} == {"absent"}
    assert any(synthetic.ABSENT in note for note in section.notes)
    assert synthetic.ABSENT in html


def test_the_impossible_is_rejected(made: table.Report) -> None:
    """What exceeds the machine's limit is listed with the reason and shown nowhere else."""
    found = {t.anchor: t for s in made.sections for t in s.tables}
    (row,) = found["rejected"].rows
    assert (row[1].text, row[2].text) == ("rejected", synthetic.REJECTED)
    shares = [row[-1].value for row in found["ops-others"].rows]
    assert max(share for share in shares if share is not None) <= 1.02


def test_a_busy_machine_is_told(folder: Path, known: Standings) -> None:
    """Figures of a busy machine, or of uncommitted code, come with a warning at the top."""
    run = find("latest", folder)
    busy = replace(run, conditions=replace(run.conditions, load=3.1, dirty=True), measurements=())
    written = report(busy, [busy], known)
    assert "a busy machine: load 3.1 on 2 cores" in written.warning
    assert "changes not committed" in dict(written.about)["Commit"]
    assert written.warning in page(written)
    assert written.warning in markdown(written)


def test_nothing_measured_is_said(folder: Path, known: Standings) -> None:
    """A run without measurements and limits still makes a page, which says what is not there."""
    run = find("latest", folder)
    empty = replace(run, measurements=(), limits={})
    assert page(report(empty, [empty], known)).count("Nothing of this is in these results") == 15


def test_no_limits_no_ceilings(folder: Path) -> None:
    """Without probed limits kernels are drawn all the same, and the page says what is missing."""
    run = find("latest", folder)
    for limits in ({}, {"caches": 1}):
        section = ops.roofline_section(possible(replace(run, limits=limits)))
        assert len(section.plots) == 2
        assert "No ceilings are drawn" in section.notes[0]


def test_history_needs_two_runs(made: table.Report, folder: Path) -> None:
    """A series has a point for every run on this CPU that measured the same thing."""
    section = next(s for s in made.sections if s.anchor == "history")
    assert {row[2].value for row in section.tables[0].rows} == {3}
    assert section.tables[0].rows[0][5].value == pytest.approx(0.25, abs=0.05)
    runs, _ = read_folder(folder)
    other = replace(runs[0], conditions=replace(runs[0].conditions, device="Another CPU"))
    assert not history.section(runs[-1], [other, runs[-1]]).plots


def cells_of(matrix: table.Table) -> dict[tuple[str, str, str], table.Cell]:
    """By op, format and variant."""
    return {
        (row[0].text, row[1].text, name): cell
        for row in matrix.rows
        for name, cell in zip(matrix.columns[2:], row[2:], strict=True)
    }


def test_the_matrix_tells_every_standing(made: table.Report) -> None:
    """Certified, failed, untried and unwritten kernels are told apart; failures with the reason."""
    section = next(s for s in made.sections if s.anchor == "conformance")
    cells = cells_of(section.tables[0])
    assert cells["linear", "F16", "generic"].text == "failed"
    assert cells["silu", "—", "generic"].text == "untried"
    assert cells["silu", "—", "scalar"] == table.NONE
    assert cells["linear", "Q4_0", "generic"].text == "deep 0.42"
    assert section.notes[0].startswith(FAILED)


def test_planted_bugs_are_told_with_what_stopped_them() -> None:
    """A bug in several formats is one row, and one that survived stands out; no bugs, no table."""
    (found,) = planted.section(BUGS).tables
    assert found.caption == "2 of 3 planted bugs were stopped"
    first, second = ([cell.text for cell in row] for row in found.rows)
    assert first == ["linear", "no tail", "numba", "2", "cases, shape", "2.50"]
    assert second[4].startswith("survived")
    assert found.rows[1][4].tone == "bad"
    assert not planted.section([]).tables


def test_what_tuning_gained_is_told() -> None:
    """The largest gain comes first, with what was chosen and what a kernel began with."""
    (found,) = tuned.section(TUNINGS).tables
    assert found.caption == "2 kernels at a node's sizes; the middle gain 1.09"
    first, second = ([cell.text for cell in row] for row in found.rows)
    assert first[3] == f"near={1 - NEAR} ({NEAR})"
    assert second[3] == f"near={NEAR}"
    assert [first[4], second[4]] == ["1.18", "1.00"]
    assert found.rows[0][4].note == "1.100 to 1.240"
    assert not tuned.section([]).tables


def test_bugs_are_those_of_the_present_judge(tmp_path: Path, monkeypatch: Any) -> None:
    """What another judge stopped says nothing of this one."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    assert load_planted() == []
    bugs = [Planted("relu", "zeros", "c", "", "cases", 0.5, "out[0] is 0")]
    keep_planted(bugs)
    assert load_planted() == bugs
    monkeypatch.setattr("kernels.planted.digest_of", lambda *_: "another")
    assert load_planted() == []


def test_what_was_only_emulated_is_told(made: table.Report, html: str, known: Standings) -> None:
    """Page and text say how many CUDA kernels no GPU has tried; they do not count as certified."""
    section = next(s for s in made.sections if s.anchor == "conformance")
    cells = cells_of(section.tables[1])
    emulated, on_gpu = cells["linear", "Q4_0", "generic"], cells["add", "—", "generic"]
    assert (emulated.text, emulated.tone) == ("emulated 0.21", "quiet")
    assert (on_gpu.text, on_gpu.tone) == ("quick 0.21", "good")
    assert cells["silu", "—", "generic"].text == "no such GPU here"
    assert passed(known) == (len(KERNELS) - 2 + 1, len(KERNELS) + 1)
    count = len(EVERY_CUDA) - 2
    told = f"{count} certified by emulation alone, never enough to run on a GPU"
    assert dict(made.about)["CUDA kernels"] == told
    assert told in html
    assert told in markdown(made)
    assert "never enough to run on a GPU" in section.lead


def test_a_gpu_is_never_certified_by_the_emulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a GPU or without, what the emulator says of a kernel stands as just that, until the GPU
    has tried it."""

    class Gpu:
        identity, capability = "NVIDIA H200/sm_90/driver-12090", 90
        library = "cuBLAS 12.9.3"

    def none() -> Any:
        raise DeviceError("there is no NVIDIA driver")

    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    monkeypatch.setattr(current, "_first_gpu", none)
    monkeypatch.setattr(current, "_instead", [])
    kernel = next(k for k in CUDA_KERNELS if k.name == ON_GPU)

    def keep(level: str, device: str) -> Certificate:
        key = Key.of(kernel, device).digest
        made = Certificate(kernel.name, key, level, 24, 0.2, 1e-12, 1.0, "2026-11-20")
        Store().add([made])
        return made

    emulated = keep(EMULATED, EMULATED)
    assert standings()[ON_GPU] == Standing(("a GPU",), emulated)
    with current.taking_the_place(Gpu()):  # type: ignore[arg-type]
        assert standings()[ON_GPU] == Standing((), emulated)
        assert not standings()[ON_GPU].certified
        quick = keep("quick", Gpu.identity)
        assert standings()[ON_GPU] == Standing((), quick)
        assert standings()[ON_GPU].certified
    assert standings()[ON_GPU] == Standing(("a GPU",), emulated)


def test_markdown_begins_with_the_headline(made: table.Report) -> None:
    """The first table has model, test, both speeds, their ratio and the memory's share."""
    lines = [line for line in markdown(made).splitlines() if line.startswith("|")]
    assert lines[0] == "| Model | Test | Assay | llama.cpp | Ratio | Memory bandwidth |"
    assert lines[1] == "| --- | --- | ---: | ---: | ---: | ---: |"
    row = next(line for line in lines if line.startswith("| tinyllama-q4_0 | tg128"))
    assert re.fullmatch(r"\|[^|]+\|[^|]+\| [\d.]+ \| [\d.]+ \| 1\.\d+ \[1.*\] \| \d+% \|", row)


def test_a_ratio_across_races_is_marked(tmp_path: Path) -> None:
    """A ratio of measurements that took no turns is shown, and marked."""
    results = Results(tmp_path, synthetic.CONDITIONS)
    about = {"bench": "engine", "test": "tg128", "model": "m-q4_0", "threads": 2, "tokens": 128}
    results.add(
        Measurement(**about, samples=(1.0, 1.1, 1.2), rivals="a"),
        Measurement(**about, contender="llama.cpp", samples=(2.0, 2.1, 2.2), rivals="b"),
    )
    (row,) = peers.headline(find("latest", tmp_path)).rows
    assert row[4].text.endswith("†")
    assert row[4].value == pytest.approx(2.1 / 1.1)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("tinyllama-q4_0", ("tinyllama", "Q4_0")),
        ("a-b.Q4_K_M", ("a-b", "Q4_K_M")),
        ("story-f16", ("story", "F16")),
        ("plain", ("plain", "")),
    ],
)
def test_formats_are_read_off_names(name: str, wanted: tuple[str, str]) -> None:
    """A model's family is its name without the format at its end."""
    assert family(name) == wanted


def test_tests_are_read_off_names() -> None:
    """pp and tg tests are known by llama-bench's names; all others are not of that kind."""
    assert Rated.of(Measurement("engine", "tg32 @ d1024")) == Rated("tg", 32, 1024)
    assert Rated.of(Measurement("engine", "pp128+tg32 x4")) is None
    assert Rated.of(Measurement("op", "pp512")) is None


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0.0, "0"), (12.34, "12.3"), (9.996, "10.0"), (1234.5, "1,230"), (0.00123, "0.00123"),
     (1e-9, "1.00e-09"), (float("nan"), "—"), (99.95, "100"), (-5.678, "-5.68")],
)  # fmt: skip
def test_three_digits(value: float, wanted: str) -> None:
    """A figure is told in three digits, whatever its size."""
    assert table.digits(value) == wanted


def shell(*words: str) -> Any:
    import typer

    from bench.shell.report import report as command

    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, list(words))


def test_the_command_writes_both_files(folder: Path, tmp_path: Path) -> None:
    """`assay report` writes page and Markdown, says where, and names files it cannot read."""
    (folder / "broken.jsonl").write_text("nothing\n")
    html, md = tmp_path / "r.html", tmp_path / "r.md"
    try:
        done = shell("--results", str(folder), "-o", str(html), "--markdown", str(md))
    finally:
        (folder / "broken.jsonl").unlink()
    assert done.exit_code == 0, done.output
    assert str(html) in done.output
    assert "note: " in done.output
    assert "broken.jsonl: line 1" in done.output
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert md.read_text().startswith("# Assay")
    assert sorted(tmp_path.iterdir()) == [html, md]


def test_bad_input_is_one_plain_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No results, no such run, nowhere to write and no matplotlib are errors that say so."""
    assert "no results in it" in str(shell("--results", str(tmp_path)).exception)
    assert "no such run" in str(shell("elsewhere", "--results", str(folder)).exception)
    nowhere = tmp_path / "none" / "r.html"
    error = shell("--results", str(folder), "-o", str(nowhere)).exception
    assert isinstance(error, OSError)
    assert error.filename == str(nowhere)
    monkeypatch.setattr("bench.shell.report.find_spec", lambda _: None)
    assert "needs matplotlib: pip install" in str(shell("--results", str(folder)).exception)
