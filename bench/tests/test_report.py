"""The report: what stands in it, and how it looks in a real browser."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench.race import frames
from bench.race.results import Measurement, find, read_folder
from bench.report import history, machines, ops, peers, plots, words
from bench.report.cells import NONE
from bench.report.certified import Standing, passed, planted_section, standings, tuned_section
from bench.report.lookup import duels, family, product, rows_of
from bench.report.page import markdown, page
from bench.report.report import report
from bench.shell.report import report as command
from bench.tests.support import synthetic
from bench.tests.support.browser import chromium, complaints, show
from bench.tests.support.programs import shell
from kernels.certificates import Certificate, Key, Store
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime import current
from kernels.cuda.runtime.device import EMULATED, DeviceError
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

SCRIPT = (Path(__file__).parent / "page.js").read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three runs on one machine, each faster than the one before."""
    made = tmp_path_factory.mktemp("results")
    for i, commit in enumerate(("a" * 40, "b" * 40, "c" * 40)):
        when = f"2026-11-{19 + i}T10:00:00+00:00"
        synthetic.write_run(made, when, commit, seed=i, pace=0.8 + 0.1 * i)
    return made


@pytest.fixture(scope="module")
def known():
    """All kernels certified but one that failed and one untried; those for a GPU by emulation, but
    one that a GPU has tried and one that nobody has."""

    def standing(name):
        failure = "token 3 is 7 times its bound away" if name == FAILED else ""
        found = Certificate(name, "", "deep", 240, 0.42, 1e-12, 1.0, "2026-11-20", failure)
        return Standing((), None if name == UNTRIED else found)

    def of_cuda(name):
        level, missing = ("quick", ()) if name == ON_GPU else (EMULATED, ("a GPU",))
        found = Certificate(name, "", level, 24, 0.21, 1e-12, 1.0, "2026-11-20")
        return Standing(missing, None if name == UNTRIED_CUDA else found)

    return {kernel.name: standing(kernel.name) for kernel in KERNELS} | {
        kernel.name: of_cuda(kernel.name) for kernel in EVERY_CUDA
    }


@pytest.fixture(scope="module")
def made(folder, known):
    runs, _ = read_folder(folder)
    return report(runs[-1], runs, known, BUGS, TUNINGS)


@pytest.fixture(scope="module")
def html(made):
    return page(made)


@pytest.fixture(scope="module")
def shown(html, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(html)
    return path


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture(scope="module")
def latest(folder):
    """The last run."""
    return find("latest", folder)


@pytest.fixture(scope="module")
def sections(made):
    return {section.anchor: section for section in made.sections}


@pytest.fixture(scope="module")
def tables(made):
    """Every table's cells: a frame with the page's headings."""
    return {table.anchor: table.cells for section in made.sections for table in section.tables}


def text_of(cells):
    return cells.map(lambda cell: cell.text)


def ask(driver, call):
    """What a function of page.js gives."""
    return driver.execute_script(f"{SCRIPT}\nreturn {call};")


def test_tables_hold_the_frames_speeds(tables, latest):
    """Every speed of the engine in the report is the frame's, for everyone who took part."""
    shown = tables["peers"]
    found = dict(
        zip(map(tuple, text_of(shown[["Model", "Test"]]).values), shown.index, strict=True)
    )
    rows = frames.summary(frames.of([latest]))
    rated = rows[(rows.bench == "engine") & rows.test.str.fullmatch(r"(pp|tg)\d+( @ d\d+)?")]
    assert len(shown) == len(rated[rated.contender == "assay"]) == 16
    for row in rated[rated.contender != "transformers"].itertuples():
        name = {"assay": "Assay"}.get(row.contender, row.contender)
        cell = shown[name][found[row.model.removesuffix(".gguf"), row.test]]
        assert cell.value == pytest.approx(row.tokens_per_second, rel=1e-12), row


def test_tables_hold_the_frames_kernels(driver, shown, latest):
    """Time, GB/s, GFLOP/s and share of every kernel on the page are the frame's."""
    show(driver, shown, SIZES["desk"])
    page_has = {}
    for part in ("decode", "prompt", "others"):
        page_has |= ask(driver, f"numbers('#all-ops-{part}', 3)")
    rows = frames.summary(frames.of([latest]))
    possible = rows[
        (rows.bench == "op")
        & (rows.contender == "assay")
        & (rows.phase == "run")
        & (rows.note == "")
    ]
    assert len(page_has) == len(possible)
    for row in possible.itertuples():
        kernel = " ".join(filter(None, (row.test, row.variant, row.format)))
        cells = page_has[f"{kernel} | {product(row.shape)} | {row.cache}"]
        rates = (row.median, row.gb_per_second, row.gflop_per_second, row.share)
        found = [cells[i] or 0.0 for i in (3, 4, 5, 7)]
        assert found == pytest.approx(rates, rel=1e-12), (kernel, row.shape)


def test_tables_are_sorted_and_searched(driver, shown):
    """Without an error in the console. Rows that have all the words stay, in long tables, too;
    without words all are back."""
    show(driver, shown, SIZES["desk"])
    rising, falling = (ask(driver, "sorted('#all-ops-decode', 3)") for _ in range(2))
    assert rising == sorted(rising)
    assert falling == rising[::-1]
    assert rising != falling
    found = ask(driver, "searched('#all-ops-decode', 'AVX512 q8_0')")
    assert set(found) == {"linear avx512_vnni Q8_0"}
    every = ask(driver, "searched('#table-peers', '')")
    assert len(ask(driver, "searched('#table-peers', 'story tg')")) < len(every)
    assert complaints(driver) == []


@pytest.mark.parametrize("size", SIZES)
def test_nothing_overlaps(driver, shown, size):
    """No block lies over another and no text of a plot over another or beyond its edge."""
    show(driver, shown, SIZES[size])
    assert driver.execute_script("return document.querySelectorAll('svg text').length") > 100
    assert "\n".join(ask(driver, "overlaps()")) == ""


@pytest.mark.parametrize("size", SIZES)
def test_page_never_scrolls_sideways(driver, shown, size):
    """Wide tables scroll within themselves, opened or not; the page does not. On a phone the column
    that says what a row is of stays in view."""
    show(driver, shown, SIZES[size])
    assert ask(driver, "firstColumn('#table-peers')") == ("sticky" if size == "phone" else "static")
    driver.execute_script("document.querySelectorAll('details').forEach((d) => d.open = true)")
    inner, whole = driver.execute_script(
        "return [window.innerWidth, document.documentElement.scrollWidth]"
    )
    assert inner == SIZES[size]
    assert whole <= inner


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_stands_out(driver, shown, scheme):
    """Light or dark, every text, those of plots too, has the contrast that WCAG asks for."""
    show(driver, shown, SIZES["desk"], scheme)
    found = ask(driver, "colours()")
    backgrounds = {luminance(behind) for _, behind, _ in found}
    assert all(light > 0.8 if scheme == "light" else light < 0.05 for light in backgrounds)
    faint = {what for ink, behind, what in found if contrast(ink, behind) < CONTRAST}
    assert faint == set()


def luminance(colour):
    """Relative luminance of rgb(…), by WCAG."""
    channels = [int(word) / 255 for word in re.findall(r"[\d.]+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a, b):
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def test_page_needs_no_network(html):
    """Nothing in the page is fetched from anywhere."""
    loads = re.findall(r"""(?:src|href|url\(|@import)\s*=?\s*["']?([^"')\s>]+)""", html)
    assert {load for load in loads if not load.startswith(("#", "data:"))} == set()
    assert re.findall(r"https?://", html) == []


def test_page_stays_small(latest, known):
    """2,000 measurements make a page of less than two megabytes."""
    many = [m for m in latest.measurements if m.bench == "op"]
    more = [replace(m, shape=m.shape.replace("out=", "out=1")) for m in many] * 4
    large = replace(latest, measurements=(*latest.measurements, *more)[:2000])
    assert len(large.measurements) == 2000
    assert len(page(report(large, [large], known)).encode()) < 2e6


def test_names_are_not_markup(latest, known):
    """A model's name cannot put an element into the page, its plots, or a column into Markdown."""
    evil = "<img src=x onerror=alert(1)>|$x_1$"
    named = [m for m in latest.measurements if m.bench in ("engine", "node")]
    renamed = tuple(replace(m, model=evil) for m in named)
    written = report(replace(latest, measurements=renamed), [latest], known)
    assert "<img" not in page(written)
    assert "\\<img src=x onerror=alert(1)>\\|$x_1$" in markdown(written)


def test_an_absent_peer_is_shown(tables, sections, html):
    """Who is absent stands in the table as absent, with the reason below it."""
    assert {cell.text for cell in tables["peers"]["transformers"]} == {"absent"}
    assert any(synthetic.ABSENT in note for note in sections["peers"].notes)
    assert synthetic.ABSENT in html


def test_the_impossible_is_rejected(tables):
    """What exceeds the machine's limit is listed with the reason and shown nowhere else."""
    rejected = text_of(tables["rejected"][["Verdict", "Why"]])
    assert rejected.values.tolist() == [["rejected", synthetic.REJECTED]]
    assert max(cell.value or 0 for cell in tables["ops-others"]["Share"]) <= 1.02


def test_a_busy_machine_is_told(latest, known):
    """Figures of a busy machine, or of uncommitted code, come with a warning at the top. A run
    without measurements and limits still makes a page, of what is known of the machine."""
    conditions = replace(latest.conditions, load=3.1, dirty=True)
    empty = replace(latest, conditions=conditions, measurements=(), limits={})
    written = report(empty, [empty], known)
    assert "a busy machine: load 3.1 on 2 cores" in written.warning
    assert "changes not committed" in dict(written.about)["Commit"]
    assert written.warning in page(written)
    assert written.warning in markdown(written)
    anchors = [section.anchor for section in written.sections]
    assert anchors == ["tuning", "conformance", "planted", "conditions"]
    assert page(written).count("<section") == 4


@pytest.mark.parametrize("limits", [{}, {"caches": 1}])
def test_no_limits_no_ceilings(latest, limits):
    """Without probed limits kernels are drawn all the same, and the page says what is missing."""
    section = ops.roofline_section(rows_of([latest]), limits)
    assert len(section.plots) == 2
    assert "No ceilings are drawn" in section.notes[0]


def test_history_needs_two_runs(tables, folder):
    """A series has a point for every run on this CPU that measured the same thing."""
    assert {cell.value for cell in tables["history"]["Runs"]} == {3}
    assert tables["history"]["Change"][0].value == pytest.approx(0.25, abs=0.05)
    runs, _ = read_folder(folder)
    other = replace(runs[0], conditions=replace(runs[0].conditions, device="Another CPU"))
    assert not history.section(runs[-1], rows_of(runs[-1:]), [other, runs[-1]]).plots


def test_machines_are_set_against_their_own_limits(latest, sections):
    """Another kind of machine, whose limits are twice as high, reaches half the share with the same
    speed; of a kind its last run counts, and one kind alone is no section."""
    assert "machines" not in sections
    theirs = [replace(m, limit_seconds=m.limit_seconds / 2) for m in latest.measurements]
    about = replace(latest.conditions, machine="aarch64/neoverse-v2/0")
    old = replace(latest, run="old", conditions=about)
    other = replace(old, run="other", measurements=tuple(theirs))
    found = machines.section(latest, [old, other, latest])
    kinds, figures = (text_of(one.cells) for one in found.tables)
    name = f"{about.device} (neoverse-v2)"
    assert name in set(kinds["Machine"]) & set(figures["Machine"])
    shares = found.tables[1].cells.assign(
        what=figures["Measurement"], other=figures["Machine"] == name
    )
    pairs = [
        [cell.value for cell in pair.sort_values("other")["Of its limit"]]
        for _, pair in shares.groupby("what")
        if NONE not in pair["Of its limit"].tolist()
    ]
    assert len(pairs) > 20
    assert all(half == pytest.approx(share / 2, rel=0.03) for share, half in pairs)
    assert found.plots
    assert machines.section(latest, [replace(other, measurements=())]).notes


def of_kernels(cells, variant):
    """A column of a matrix by op and format."""
    return dict(
        zip(map(tuple, text_of(cells[["Op", "Format"]]).values), cells[variant], strict=True)
    )


def test_the_matrix_tells_every_standing(tables, sections):
    """Certified, failed, untried and unwritten kernels are told apart; failures with the reason."""
    generic, scalar = (of_kernels(tables["matrix"], name) for name in ("generic", "scalar"))
    assert generic["linear", "F16"].text == "failed"
    assert generic["silu", "—"].text == "untried"
    assert generic["linear", "Q4_0"].text == "deep 0.42"
    assert scalar["silu", "—"] == NONE
    assert sections["conformance"].notes[0].startswith(FAILED)


def test_planted_bugs_are_told_with_what_stopped_them(sections, tables):
    """A bug in several formats is one row, and one that survived stands out; no bugs, no table."""
    assert sections["planted"].tables[0].caption == "2 of 3 planted bugs were stopped"
    first, second = text_of(tables["planted-bugs"]).values.tolist()
    assert first == ["linear", "no tail", "numba", "2", "cases, shape", "2.50"]
    assert second[4].startswith("survived")
    assert tables["planted-bugs"]["Stopped by"][1].tone == "bad"
    assert not planted_section([]).tables


def test_what_tuning_gained_is_told(sections, tables):
    """The largest gain comes first, with what was chosen and what a kernel began with."""
    found = tables["tunings"]
    caption = "2 kernels at a node's sizes; the middle gain 1.09"
    assert sections["tuning"].tables[0].caption == caption
    assert text_of(found["Chosen (before)"]).tolist() == [
        f"near={1 - NEAR} ({NEAR})",
        f"near={NEAR}",
    ]
    assert text_of(found["Gain"]).tolist() == ["1.18", "1.00"]
    assert found["Gain"][0].note == "1.100 to 1.240"
    assert not tuned_section([]).tables


def test_bugs_are_those_of_the_present_judge(tmp_path, monkeypatch):
    """What another judge stopped says nothing of this one."""
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    assert load_planted() == []
    bugs = [Planted("relu", "zeros", "c", "", "cases", 0.5, "out[0] is 0")]
    keep_planted(bugs)
    assert load_planted() == bugs
    monkeypatch.setattr("kernels.planted.digest_of", lambda *_: "another")
    assert load_planted() == []


def test_what_was_only_emulated_is_told(made, sections, tables, html, known):
    """Page and text say how many CUDA kernels no GPU has tried; they do not count as certified."""
    cells = of_kernels(tables["matrix-cuda"], "generic")
    emulated, on_gpu = cells["linear", "Q4_0"], cells["add", "—"]
    assert (emulated.text, emulated.tone) == ("emulated 0.21", "quiet")
    assert (on_gpu.text, on_gpu.tone) == ("quick 0.21", "good")
    assert cells["silu", "—"].text == "no such GPU here"
    assert passed(known) == (len(KERNELS) - 2 + 1, len(KERNELS) + 1)
    count = len(EVERY_CUDA) - 2
    told = f"{count} certified by emulation alone, never enough to run on a GPU"
    assert dict(made.about)["CUDA kernels"] == told
    assert told in html
    assert told in markdown(made)
    assert "never enough to run on a GPU" in sections["conformance"].lead


def test_a_gpu_is_never_certified_by_the_emulator(tmp_path, monkeypatch):
    """With a GPU or without, what the emulator says of a kernel stands as just that, until the GPU
    has tried it."""

    class Gpu:
        identity, capability = "NVIDIA H200/sm_90/driver-12090", 90
        library = "cuBLAS 12.9.3"

    def none():
        raise DeviceError("there is no NVIDIA driver")

    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    monkeypatch.setattr(current, "_first_gpu", none)
    monkeypatch.setattr(current, "_instead", [])
    kernel = next(k for k in CUDA_KERNELS if k.name == ON_GPU)

    def keep(level, device):
        key = Key.of(kernel, device).digest
        made = Certificate(kernel.name, key, level, 24, 0.2, 1e-12, 1.0, "2026-11-20")
        Store().add([made])
        return made

    emulated = keep(EMULATED, EMULATED)
    assert standings()[ON_GPU] == Standing(("a GPU",), emulated)
    with current.taking_the_place(Gpu()):
        assert standings()[ON_GPU] == Standing((), emulated)
        assert not standings()[ON_GPU].certified
        quick = keep("quick", Gpu.identity)
        assert standings()[ON_GPU] == Standing((), quick)
        assert standings()[ON_GPU].certified
    assert standings()[ON_GPU] == Standing(("a GPU",), emulated)


def test_markdown_begins_with_the_headline(made):
    """The first table has model, test, both speeds, their ratio and the memory's share."""
    lines = [line for line in markdown(made).splitlines() if line.startswith("|")]
    assert lines[0] == "| Model | Test | Assay | llama.cpp | Ratio | Memory bandwidth |"
    assert lines[1] == "| --- | --- | ---: | ---: | ---: | ---: |"
    row = next(line for line in lines if line.startswith("| tinyllama-q4_0 | tg128"))
    assert re.fullmatch(r"\|[^|]+\|[^|]+\| [\d.]+ \| [\d.]+ \| 1\.\d+ \[1.*\] \| \d+% \|", row)


def test_a_ratio_across_races_is_marked():
    """A ratio of measurements that took no turns is shown, and marked."""
    about = {"bench": "engine", "test": "tg128", "model": "m-q4_0", "threads": 2, "tokens": 128}
    rows = synthetic.rows_of(
        Measurement(**about, samples=(1.0, 1.1, 1.2), rivals="a"),
        Measurement(**about, contender="llama.cpp", samples=(2.0, 2.1, 2.2), rivals="b"),
    )
    (found,) = peers.headline(rows).tables[0].cells["Ratio"]
    assert found.text.endswith("†")
    assert found.value == pytest.approx(2.1 / 1.1)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("tinyllama-q4_0", ("tinyllama", "Q4_0")),
        ("a-b.Q4_K_M", ("a-b", "Q4_K_M")),
        ("story-f16", ("story", "F16")),
        ("plain", ("plain", "")),
    ],
)
def test_formats_and_tests_are_read_off_names(name, wanted):
    """A model's family is its name without the format at its end; pp and tg tests are known by
    llama-bench's names, all others are not of that kind."""
    assert family(name) == wanted
    tests = ("tg32 @ d1024", "pp128+tg32 x4")
    rows = synthetic.rows_of(*(Measurement("engine", t, model=name) for t in tests))
    (found,) = duels(rows).itertuples()
    assert (found.kind, found.amount, found.depth) == ("tg", 32, 1024)


def test_every_variant_has_a_look_of_its_own():
    """No two variants share colour and marker."""
    variants = {kernel.variant for kernel in KERNELS}
    assert variants <= plots.NAMES.keys()
    assert len({plots.look(variant) for variant in variants}) == len(variants)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0.0, "0"), (12.34, "12.3"), (9.996, "10.0"), (1234.5, "1,230"), (0.00123, "0.00123"),
     (1e-9, "1.00e-09"), (float("nan"), "—"), (99.95, "100"), (-5.678, "-5.68")],
)  # fmt: skip
def test_three_digits(value, wanted):
    """A figure is told in three digits, whatever its size."""
    assert words.digits(value) == wanted


def test_the_command_writes_both_files(folder, tmp_path):
    """`assay report` writes page and Markdown, says where, and names files it cannot read."""
    (folder / "broken.jsonl").write_text("nothing\n")
    html, md = tmp_path / "r.html", tmp_path / "r.md"
    try:
        done = shell(command, "--results", str(folder), "-o", str(html), "--markdown", str(md))
    finally:
        (folder / "broken.jsonl").unlink()
    assert done.exit_code == 0, done.output
    assert str(html) in done.output
    assert "note: " in done.output
    assert "broken.jsonl: line 1" in done.output
    assert html.read_text().startswith("<!DOCTYPE html>")
    assert md.read_text().startswith("# Assay")
    assert sorted(tmp_path.iterdir()) == [html, md]
    done = shell(command, "--results", str(folder), "-o", str(html), "--json")
    size = html.stat().st_size
    assert json.loads(done.output)["files"] == [{"file": str(html), "bytes": size}]


def test_bad_input_is_one_plain_line(folder, tmp_path, monkeypatch):
    """No results, no such run, nowhere to write and no matplotlib are errors that say so."""
    assert "no results in it" in str(shell(command, "--results", str(tmp_path)).exception)
    assert "no such run" in str(shell(command, "elsewhere", "--results", str(folder)).exception)
    nowhere = tmp_path / "none" / "r.html"
    error = shell(command, "--results", str(folder), "-o", str(nowhere)).exception
    assert str(error) == f"{nowhere}: cannot be written: there is no folder {nowhere.parent}"
    monkeypatch.setattr("bench.shell.report.find_spec", lambda _: None)
    assert "needs matplotlib: pip install" in str(
        shell(command, "--results", str(folder)).exception
    )
