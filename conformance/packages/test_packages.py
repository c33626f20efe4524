"""Kernels and ops of installed packages: listed, certified, used on request; errors in one line."""

import json
import re
import shutil
import sys

import pytest

from conformance.support.child import output_of, run
from conformance.support.installed import (
    EXAMPLE,
    environment,
    install_example,
    place,
    place_assay,
    program,
)

OURS = """
from kernels.table import VARIANTS, EVERY, complaints, of_packages
from reference.table import OPS, package_ops
print(*complaints(), sep="\\n")
assert {k.name for k in of_packages()} <= {"rms_norm/cpu/good"}, of_packages()
assert not package_ops()[0] and "own" not in OPS
"""
ROW = """
from kernels.cpu.rms_norm import scalar
from kernels.kernel import Kernel
KERNEL = Kernel({op!r}, {variant!r}, scalar, {format!r})
"""
OP = """
from dataclasses import replace
from reference.table import OPS
OP = OPS["relu"]
"""
KEY = """
import sys
from kernels.certificates import Key
from kernels.table import find
print(Key.of(find(sys.argv[1])).digest)
"""

IN_C = """
#include <math.h>

void l2_norm(const float *x, double eps, float *out, long tokens, long hidden) {
    for (long t = 0; t < tokens; t++, x += hidden, out += hidden) {
        double sum = 0;
        for (long i = 0; i < hidden; i++) sum += (double)x[i] * x[i];
        double length = sqrt(sum) < eps ? eps : sqrt(sum);
        for (long i = 0; i < hidden; i++) out[i] = x[i] / length;
    }
}
"""


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The example, installed by pip without a network."""
    return install_example(tmp_path_factory.mktemp("example"))


def row(op="rms_norm", variant="", format=None):
    """The source of a package's kernel, made from a share of ours."""
    return ROW.format(op=op, variant=variant, format=format)


def with_wrong_sums(example, folder):
    """A copy of the installed example."""
    wrong = shutil.copytree(example, folder / "wrong")
    sums = wrong / "assay_example/sums.py"
    sums.write_text(sums.read_text().replace("total = 0.0", "total = 1e-3"))
    return wrong


def with_entry_point(folder, name, source, group="assay.kernels", entry=None, value="KERNEL"):
    """Install a package of one module with one entry point."""
    module = name.replace("-", "_")
    entries = {group: {entry or name: f"{module}:{value}"}}
    return place(folder, name, {f"{module}.py": source}, entries)


def test_packages_kernels_are_listed(example):
    """`assay ops` lists its kernels and its op, with the package's name."""
    done = program("ops", "--json", folders=(example,))
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    package = "assay-example 0.1.0"
    theirs = {k["kernel"]: k["package"] for k in said["kernels"] if "package" in k}
    assert theirs == {"rms_norm/cpu/example": package, "l2_norm/cpu/example": package}
    assert said["packages"] == {"l2_norm": package}
    assert said["ops"]["l2_norm"].startswith("x: f32[tokens hidden], eps: f64")
    assert f"l2_norm, {package}" in program("ops", folders=(example,)).stdout


def test_packages_ops_are_certified(example):
    """Its own op is judged by its reference, its bound and its laws."""
    done = program("certify", "--op", "l2_norm", "--again", "--json", folders=(example,))
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert (found["kernel"], found["level"]) == ("l2_norm/cpu/example", "full")
    assert not found["failure"]
    assert 0 < found["worst"] <= 1


def test_packages_are_judged_by_pytest(example, tmp_path):
    """In its repository `pytest --assay` tries its kernels without a list; for a copy that sums
    wrongly it names the failing case. A file in C is judged by the example's op."""
    shutil.copy(EXAMPLE / "pyproject.toml", tmp_path)
    command = (sys.executable, "-m", "pytest", "-q", "--assay")
    assay = place_assay(tmp_path / "assay")
    done = run(*command, cwd=tmp_path, env=environment(assay, example))
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout + done.stderr
    wrong = with_wrong_sums(example, tmp_path)
    done = run(*command, "-k", "rms_norm", cwd=tmp_path, env=environment(assay, wrong))
    assert "1 failed" in done.stdout
    assert "rms_norm/cpu/example: " in done.stdout
    assert "again: assay op rms_norm --variant example" in done.stdout
    (tmp_path / "l2_norm.c").write_text(IN_C)
    judged = program("judge", tmp_path / "l2_norm.c", "--op", "l2_norm", folders=(assay, example))
    assert "PASSED" in judged.stdout, judged.stdout + judged.stderr


def test_packages_kernels_run_on_request(example):
    """Nodes run its kernel with --variant, none without, and the text is a story's."""
    asked = program("plan", "story", "--variant", "example", folders=(example,))
    assert asked.returncode == 0, asked.stderr
    assert "rms_norm/cpu/example" in asked.stdout
    assert "rms_norm/cpu/generic" not in asked.stdout
    assert "example" not in program("plan", "story", folders=(example,)).stdout
    run = ("run", "story", "-p", "Once", "-n", 12, "--temp", 0)
    theirs = program(*run, "--variant", "example", folders=(example,))
    assert theirs.stdout == program(*run).stdout != ""


def test_wrong_kernels_of_packages_are_refused(example, tmp_path):
    """An edit of its sums makes another kernel, whose trial fails and which never runs."""
    wrong = with_wrong_sums(example, tmp_path)
    done = program("run", "story", "-p", "Once", "-n", 2, "--variant", "example", folders=(wrong,))
    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert re.match("assay: no certified kernel for rms_norm: rms_norm/cpu/example failed", last)
    assert "again: assay op rms_norm --variant example" in last


def test_certificates_bind_the_whole_package(example, tmp_path):
    """A helper's source, a file beside it, and a version: each makes another key."""
    name = "rms_norm/cpu/example"
    keys = [output_of(KEY, name, env=environment(example))]
    for i, path in enumerate(("sums.py", "table.bin", "__init__.py")):
        copy = shutil.copytree(example, tmp_path / str(i))
        with (copy / "assay_example" / path).open("a") as file:
            file.write("# edited\n")
        keys.append(output_of(KEY, name, env=environment(copy)))
    assert len(set(keys)) == 4
    again = shutil.copytree(example, tmp_path / "again")
    assert output_of(KEY, name, env=environment(again)) == keys[0]


def test_edits_after_the_import_are_detected(example, tmp_path):
    """A process that runs code no longer in the file certifies nothing."""
    copy = shutil.copytree(example, tmp_path / "copy")
    edit = f"open({str(copy / 'assay_example/sums.py')!r}, 'a').write('# edited')\n"
    text = KEY.replace("print(", f"find(sys.argv[1])\n{edit}print(")
    with pytest.raises(RuntimeError, match=r"EditedError: .*sums\.py was edited since"):
        output_of(text, "rms_norm/cpu/example", env=environment(copy))


def test_broken_packages_are_reported(tmp_path):
    """It is named; others still work, and so do all of ours."""
    wrong = {
        "no-import": ("import nowhere_at_all\n", "cannot be imported: ModuleNotFoundError"),
        "ends": ("raise SystemExit(3)\n", "cannot be imported: SystemExit: 3"),
        "no-kernel": ("KERNEL = 3\n", "entry point no-kernel of assay.kernels gives int"),
        "no-op": (row("rms_nrom", "no-op"), "rms_nrom/cpu/no-op: there is no op 'rms_nrom'"),
        "no-format": (row("rms_norm", "no-format", "Q4_0"), "rms_norm has no format Q4_0"),
        "misnamed": (row("rms_norm", "other"), "rms_norm/cpu/other is no misnamed"),
    }
    for name, (source, _) in wrong.items():
        with_entry_point(tmp_path, name, source)
    with_entry_point(tmp_path, "ours", row("rms_norm", "generic"), entry="generic")
    with_entry_point(tmp_path, "taken", OP, "assay.ops", value="OP")
    with_entry_point(tmp_path, "three", "OP = 3\n", "assay.ops", value="OP")
    with_entry_point(tmp_path, "good", row("rms_norm", "good"))
    complaints = output_of(OURS, env=environment(tmp_path)).splitlines()
    expected = {name: words for name, (_, words) in wrong.items()} | {
        "ours": "the variant generic is Assay's own",
        "taken": "the op relu is taken: Assay has it",
        "three": "entry point three of assay.ops gives int, want an Op",
    }
    assert len(complaints) == len(expected)
    for name, words in expected.items():
        assert any(c.startswith(f"package {name} 1.0: ") and words in c for c in complaints), name


def test_a_missing_variant_names_the_broken_package(tmp_path):
    """The error line says why the variant is missing."""
    with_entry_point(tmp_path, "broken", "import nowhere_at_all\n")
    ask = ("run", "story", "-p", "Once", "-n", 1)
    done = program(*ask, "--variant", "broken", folders=(tmp_path,))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("assay: no kernel is a variant 'broken': ")
    assert "package broken 1.0: broken:KERNEL cannot be imported" in line
    assert program(*ask, folders=(tmp_path,)).returncode == 0


def test_packages_are_imported_on_request(tmp_path):
    """Neither running a model nor requesting a variant of ours imports a package."""
    seen = tmp_path / "imported"
    with_entry_point(
        tmp_path, "shy", f"open({str(seen)!r}, 'w').close()\n" + row("rms_norm", "shy")
    )
    for words in (
        ("run", "story", "-p", "Once", "-n", 1),
        ("plan", "story", "--variant", "generic"),
    ):
        assert program(*words, folders=(tmp_path,)).returncode == 0
        assert not seen.exists()
    assert program("plan", "story", "--variant", "shy", folders=(tmp_path,)).returncode == 0
    assert seen.exists()
