"""The board: verdicts, ranks, ties, and the contents of page and frame."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from bench.board import rows as board_rows
from bench.board import run as board_run
from bench.board.page import report, summary
from bench.board.rows import BoardError, Row
from bench.board.run import RULE, board, ranked, solutions
from bench.race.experiment import Rule
from bench.report.page import page
from bench.tests.support.synthetic import ENDLESS, machine_of

RELU = """
import numpy as np

def relu(x):
    for _ in range({times}):
        out = {formula}
    return out
"""
RIGHT = "np.where(x < 0, np.float32(0), x)"
FILES = {
    "relu/maximum.py": RELU.format(times=1, formula=RIGHT),
    "relu/slow.py": RELU.format(times=50, formula=RIGHT),
    "relu/zeros.py": RELU.format(times=1, formula="np.zeros_like(x)"),
    "relu/narrow.py": '# assay: takes = "width <= 64"' + RELU.format(times=1, formula=RIGHT),
    "elsewhere/said.py": '# assay: op = "relu"' + RELU.format(times=1, formula=RIGHT),
    "helper.py": "",
    "relu/notes.md": "",
    ".hidden/relu/x.py": "",
}
BRIEFLY = Rule(least=3, cap_seconds=0.2, most=5)
SHAPE = {"tokens": 4, "width": 4096}


def machine(per_second):
    """A machine with this bandwidth and unlimited arithmetic."""
    return machine_of({2**30: per_second}, ENDLESS, caches=(), threads=[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Solutions in folders named after their op, or with the op in the file, and other files."""
    root = tmp_path_factory.mktemp("board")
    for name, source in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(source)
    return root


@pytest.fixture(scope="module")
def found(folder):
    """The board of all of them, which run; times are synthetic."""
    chosen = [one for one in solutions(folder) if not isinstance(one, str)]
    rng, started = np.random.default_rng(7), board_run._started

    def made_up(*given):
        took = {name: 1e-3 if "slow" in name else 2e-5 for name in started(*given)}
        return {name: list(s * rng.lognormal(0, 0.02, 12)) for name, s in took.items()}

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(board_run, "_started", made_up)
        return board(chosen, folder, machine(1e13), 1, SHAPE, "full", BRIEFLY)


def test_files_say_their_op_or_lie_in_its_folder(folder):
    """Files with neither have a line; hidden folders and other kinds of files are ignored."""
    told = list(solutions(folder))
    names = {str(one[0].file.relative_to(folder)): one[1] for one in told if isinstance(one, tuple)}
    assert names == {name: "relu" for name in FILES if name.endswith(".py") and name[0] not in ".h"}
    (line,) = [one for one in told if isinstance(one, str)]
    assert line == f"{folder / 'helper.py'} says of no op that it is its kernel: left out"
    with pytest.raises(ValueError, match="is no folder"):
        list(solutions(folder / "helper.py"))


def test_functions_of_a_file_are_solutions_in_each_format(tmp_path):
    """Functions named after ops, where neither the file nor its folder names one."""
    both = "def relu(x): ...\ndef helper(x): ...\ndef linear(x, weight): ...\n"
    (tmp_path / "mine.py").write_text('# assay: formats = ["F32", "Q4_0"]\n' + both)
    told = [(str(one), one.manifest.format, op) for one, op in solutions(tmp_path)]
    assert told == [
        ("mine.py:relu", "", "relu"),
        ("mine.py:linear", "F32", "linear"),
        ("mine.py:linear", "Q4_0", "linear"),
    ]


def test_the_summary_has_a_row_for_all_formats():
    """In which of them it is not batch invariant, in which it is wrong, and by how much."""
    blank = Row("cpu", "linear", "", "", 1, "ggml_linear.c", "passed", held=("tokens-alone",))
    rows = [
        replace(blank, format="F32", ordinary=0.25),
        replace(blank, format="Q4_0", ordinary=0.5, held=(), broken=("tokens-alone", "sums-go")),
        replace(blank, format="Q6_K", verdict="wrong", why="out[0] is 1", ordinary=4.0),
        replace(blank, name="assay generic, cold"),
        replace(blank, name="assay generic, hot"),
    ]
    section = summary(rows)
    cells = [[cell.text for cell in row] for row in section.tables[0].rows]
    expected = ["ggml_linear.c", "linear", "2 of 3 formats", "4.00", "not Q4_0", "sums-go"]
    assert cells[0] == expected
    assert [row[0] for row in cells] == ["ggml_linear.c", "assay generic"]
    assert len(section.plots) == 1


def test_right_ones_are_ranked_and_wrong_ones_told(found):
    """Fifty times the work ranks below equal code, zeros are wrong, and manifests count."""
    by_name = {row.name: row for row in found}
    assert [row.name for row in found if row.rank][-1] == "relu/slow.py"
    assert by_name["relu/slow.py"].rank == 3
    assert by_name["relu/slow.py"].low > 1
    assert {by_name[name].rank for name in ("relu/maximum.py", "elsewhere/said.py")} <= {1, 2}
    assert by_name["relu/zeros.py"].verdict == "wrong"
    assert "out[" in by_name["relu/zeros.py"].why
    assert by_name["relu/narrow.py"].verdict == "other sizes"
    assert by_name["relu/narrow.py"].why == "it takes width <= 64"
    assert all(not row.broken and "same-bits-again" in row.held for row in found if row.rank)
    assert all(0 < row.share < 1 for row in found if row.rank)


def test_faster_than_the_machine_is_refused(folder):
    """Results beyond the machine's limits are not ranked."""
    chosen = [one for one in solutions(folder) if not isinstance(one, str)][:2]
    rows = board(chosen, folder, machine(1e6), 1, SHAPE, "quick", BRIEFLY)
    assert {row.verdict for row in rows} == {"refused"}
    assert all(row.rank == 0 and "this machine takes" in row.why for row in rows)


def test_within_the_noise_is_a_tie():
    """Solutions not slower than the first of a rank share it, by rounds and by starts."""
    rng = np.random.default_rng(5)
    blank = {name: Row("cpu", "relu", "", "", 1, name, "passed") for name in "abcd"}

    def starts(*medians):
        return [list(m * rng.lognormal(0, 0.02, 12)) for m in medians]

    samples = {
        "a": starts(1.0, 1.0, 1.0),
        "b": starts(1.01, 1.0, 1.0),
        "c": starts(2.0, 2.0, 2.0),
        "d": starts(0.8, 2.2, 2.3),  # in one start it was the fastest
    }
    rank = {row.name: row.rank for row in ranked(blank, samples)}
    assert rank["a"] == rank["b"] == 1
    assert rank["c"] == 3
    assert rank["d"] != 4
    alone = {"a": samples["a"]}
    assert [r.rank for r in ranked({"a": blank["a"]}, alone)] == [1]
    assert ranked(blank, {}) == list(blank.values())
    assert RULE.least >= 3


def test_json_is_read_again_and_the_frame_and_the_page_have_all(found):
    """Every row in each, a tie too, and what is said in a page that needs nothing else."""
    found = [replace(row, rank=1) if row.rank == 2 else row for row in found]
    said = json.loads(json.dumps([row.json() for row in found]))
    assert [Row.of(row) for row in said] == found
    frame = board_rows.frame(found)
    assert list(frame["name"]) == [row.name for row in found]
    assert set(frame[frame["rank"] == 1]["name"]) == {"relu/maximum.py", "elsewhere/said.py"}
    elsewhere = [Row.of(row | {"machine": "another"}) for row in said]
    text = page(report(board_rows.sorted_rows([*found, *elsewhere]), ["x <b> was left out"]))
    assert text.count("relu/slow.py") == 4  # two races, its laws, and the summary
    assert "on another" in text
    assert "1=" in text
    assert "x &lt;b&gt; was left out" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank": "1"}, "rank is not '1'"),
        ({"held": "all"}, "held is not 'all'"),
        ({"other": 3}, "a row has other keys"),
    ],
)
def test_what_is_no_board_is_told(change, words):
    """And an infinite error survives JSON."""
    row = Row("cpu", "relu", "", "", 1, "a", "wrong", worst=math.inf)
    assert Row.of(json.loads(json.dumps(row.json()))) == row
    with pytest.raises(BoardError, match=words):
        Row.of(json.loads(json.dumps(row.json())) | change)
