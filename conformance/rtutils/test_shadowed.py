"""With any files in the working folder, the program, its children and the package import our
rooms."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from conformance.support.child import python, run

PROGRAM = str(Path(sys.executable).with_name("assay"))
# With PYTHONPATH, and with a file that is not looked for without.
FACES = {
    "assay": ([PROGRAM], ".", "engine.py"),
    "python -m assay": ([sys.executable, "-m", "assay"], "", "typer.py"),
}
OURS = "engine.py", "bench.py", "reference.py", "conftest.py", "kernels/__init__.py"
COMMANDS = [
    ["run story -p Once -n 2"],
    ["op rms_norm"],
    ["bench story -p 8 -n 2 --seconds 0.1", "report"],
]
# What is imported is settled before a program knows its command: the other face has one that
# starts a child.
CASES = [*(("assay", c) for c in COMMANDS), ("python -m assay", ["certify --op relu --again"])]
NAMES = """
import ast, importlib, sys
before = set(sys.modules)
import assay
assert not {"numpy", "pandas", "hypothesis", "numba"} & set(sys.modules)
source = open(assay.__file__).read()
[block] = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
seen = {a.asname or a.name: (n.module, a.name) for n in block.body for a in n.names}
assert sorted(seen) == sorted(assay.__all__) == sorted(assay._HOMES) == dir(assay)
for name, (module, attribute) in seen.items():
    assert getattr(assay, name) is getattr(importlib.import_module(module), attribute), name
"""
USE = """
import data, assay
with assay.Engine.load("story") as engine:
    for piece in engine.stream("Once", assay.SamplingParams(max_tokens=2)):
        print(piece.text)
print(assay.OPS["relu"].name, assay.find("relu/cpu/generic").name, assay.frames.KEYS)
assert data.OWN == 1  # nothing of the above needs ours
"""
JUDGE = """
import assay
found = assay.judge("relu/cpu/generic")
assert (found.kernel, found.level, found.failure) == ("relu/cpu/generic", "quick", "")
for name, level in (("nope", "quick"), ("relu/cpu/generic", "deep")):
    try:
        assay.judge(name, level=level)
    except (KeyError, ValueError) as error:
        print(error)
"""


def write_shadowing_files(folder: Path, *more: str) -> Path:
    """Put files there, named like our rooms, that end a program that imports them."""
    for name in (*OURS, *more):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("raise SystemExit(f'{__file__} was imported')\n")
    (folder / "data").mkdir(exist_ok=True)
    return folder


@pytest.mark.parametrize(
    ("face", "commands"), CASES, ids=lambda x: x if isinstance(x, str) else x[0].split()[0]
)
def test_shadowing_files_do_no_harm(face, commands, tmp_path):
    """Every command does what it does elsewhere, and so do its children."""
    program, path, more = FACES[face]
    own = {"ASSAY_RESULTS": str(tmp_path / "results"), "PYTHONPATH": path}
    for command in commands:
        where = write_shadowing_files(tmp_path, more)
        done = run(*program, *shlex.split(command), cwd=where, env={**os.environ, **own})
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_lazy_names_are_those_of_type_checkers(tmp_path):
    """Each is imported lazily, from where a type checker is told that it is."""
    done = python(NAMES, cwd=write_shadowing_files(tmp_path))
    assert done.returncode == 0, done.stderr


def test_the_package_beside_shadowing_modules(tmp_path):
    """The engine, one op and the frames are ours; the user's own data stays the user's."""
    write_shadowing_files(tmp_path).joinpath("data/__init__.py").write_text("OWN = 1\n")
    done = python(USE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_judging_beside_shadowing_files(tmp_path):
    """A child tries it, with such files there; errors are one line."""
    done = python(JUDGE, cwd=write_shadowing_files(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "\"no kernel is called 'nope'\"\nlevel must be quick or full, got 'deep'\n"
    )


@pytest.mark.parametrize("name", ["engine.py", "bench/__init__.py", "kernels/own.py"])
def test_an_imported_shadowing_module_is_named(name, tmp_path):
    """A user's module with one of our names is reported by its file, in one line."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    room = Path(name).parts[0].removesuffix(".py")
    done = python(f"import {room}, assay; assay.frames", cwd=tmp_path)
    place = path.parent if name == "kernels/own.py" else path
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: assay needs its own package {room}, and {place} was imported by that name:"
        " give it another"
    )
