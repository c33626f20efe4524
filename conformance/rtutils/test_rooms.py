"""The rooms: which way imports run, and that tables, folders and names agree."""

import ast
import re
import sys
from collections.abc import Container, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from conformance.conftest import MARKERS
from conformance.support.rooms import ROOT
from engine.metadata.architectures import ARCHITECTURES
from engine.models.table import FAMILIES
from kernels import provenance
from kernels.table import KERNELS, variants
from reference.formats import FORMATS
from reference.table import OPS

ROOMS = {
    "reference": {"reference"},
    "kernels": {"reference", "kernels"},
    "engine": {"reference", "kernels", "engine"},  # data is a name that users have, too
    "conformance": {"reference", "kernels", "engine", "data", "conformance"},
    "bench": {"reference", "kernels", "engine", "data", "bench"},
    "data": {"reference", "engine", "data"},
    "assay": {"reference", "kernels", "engine", "bench", "assay"},
}
# Lines of Python that a room may have. Who needs more raises the number and says why; who deletes
# lowers it. In all 72,000 are wanted, of which bench may have 12,000 and conformance 24,000.
LINES = {
    "reference": 17_380,
    "kernels": 28_120,
    "engine": 34_500,
    "conformance": 42_050,
    "bench": 27_740,
    "data": 2_720,
    "assay": 335,
}
TEST_IMPORTED = re.compile(
    r"^\s*(?:from|import) (?:conformance|bench)(?!\.support\.).*\btest_", re.MULTILINE
)
TEAM = {  # run, feed or watch kernels
    f"kernels.cpu.runtime.{name}"
    for name in ("team", "sequence", "io_ring", "io_pool", "streaming", "float_control")
}


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Every module that a source imports, wherever in it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import():
                found += (alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                found.append(module)
            case ast.ImportFrom():
                found.append(".")
    return tuple(found)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_one_way(room):
    """reference <- kernels <- engine <- {conformance, bench}, and those two never meet;
    assay is their face, which none of them imports."""
    for path in sources(room):
        for module in imports(path):
            top = module.split(".")[0]
            assert top, f"{path.name} imports relatively: write the full name"
            assert top not in ROOMS or top in ROOMS[room], f"{path.name} imports {module}"


@pytest.mark.parametrize("room", provenance.ROOMS)
def test_imports_are_found_without_parsing(room):
    """Certificates bind what a module imports: it is found as the parser finds it."""
    for path in sources(room):
        quickly, parsed = (
            {(origin, name) for origin, names in read(path.read_text()) for name in names}
            for read in (provenance._quickly, provenance._by_parsing)
        )
        assert quickly >= parsed, path


def needed(path: Path, modules: Container[str]) -> Iterator[str]:
    """Those of these modules that a source imports when it runs, wherever in it."""
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        match node := waiting.pop():
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                waiting += node.orelse
            case ast.Import():
                yield from (alias.name for alias in node.names if alias.name in modules)
            case ast.ImportFrom(module=str(module)):
                names = (f"{module}.{alias.name}" for alias in node.names)
                yield from (name if name in modules else module for name in names)
            case _:
                waiting += ast.iter_child_nodes(node)


def test_no_import_cycles():
    """Imports make no circle, within a room either: what is read first needs nothing read later."""
    modules = {module_of(path): path for room in ROOMS for path in sources(room)}
    graph = {name: set(needed(path, modules)) for name, path in modules.items()}
    TopologicalSorter(graph).prepare()


def test_the_reference_needs_numpy_only():
    """What is true imports NumPy, itself and the standard library."""
    allowed = {"numpy", "reference", *sys.stdlib_module_names}
    for path in sources("reference"):
        for module in imports(path):
            assert module.split(".")[0] in allowed, f"{path.name} imports {module}"


def test_only_the_cuda_kernels_know_cupy():
    """Everything else imports and runs on a machine without a GPU or CuPy."""
    for room in ROOMS:
        for path in sources(room):
            if "cuda" not in path.relative_to(ROOT).as_posix():
                assert not any(m.split(".")[0] == "cupy" for m in imports(path)), path


def test_kernels_share_no_code_with_the_formulas():
    """Compiled code imports from the reference rows, constants and names, never a formula."""
    formulas = {(op.reference.__module__, op.reference.__name__) for op in OPS.values()}
    for path in sources("kernels/cpu"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                taken = formulas & {(node.module, alias.name) for alias in node.names}
                assert not taken, f"{path.name} imports the formula {taken}"


def test_every_op_has_a_kernel_in_every_format():
    """Each row of the reference's table has a CPU kernel that needs no special machine."""
    for op in OPS.values():
        for wanted in op.formats or (None,):
            plain = [k for k in variants(op.name, wanted) if not k.requires]
            assert plain, f"{op.name} {wanted or ''} has no kernel for every CPU"


def test_every_kernel_has_an_op():
    """Kernels name ops and formats that exist, and no two of them are called the same."""
    for kernel in KERNELS:
        op = OPS[kernel.op]
        assert kernel.format in (op.formats or (None,)), kernel.name
        assert kernel.format is None or kernel.format in FORMATS
    assert len({kernel.name for kernel in KERNELS}) == len(KERNELS)


def test_every_reference_is_in_the_table():
    """A module that has rows (OP or OPS) has them all in the table."""
    listed = set(map(id, OPS.values()))
    for path in sources("reference"):
        if path.name not in ("op.py", "table.py"):
            module = __import__(module_of(path), fromlist=["OP"])
            rows = [getattr(module, "OP", None), *(getattr(module, "OPS", None) or ())]
            for row in filter(None, rows):
                assert id(row) in listed, f"{row.name} of {path.name} is not in the table"
    assert all(name == op.name for name, op in OPS.items())


def test_every_share_is_in_the_table():
    """A file of kernels/cpu that makes shares is used by a kernel, or serves the team."""
    used = {k.share.function.__module__ for k in KERNELS}
    used |= {k.pack.share.function.__module__ for k in KERNELS if k.pack}
    makers = {"share", "by_format", "each", "each_row", "alone"}
    for path in sources("kernels/cpu"):
        calls = (n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
        names = {call.id for call in calls if isinstance(call, ast.Name)}
        if path.name != "share.py" and names & makers:
            assert module_of(path) in used | TEAM, f"{path.name}: no kernel uses it"


def test_one_op_has_one_name_in_every_room():
    """A kernel's file is called like its reference's, or begins so and then tells its variant."""
    for kernel in KERNELS:
        *folders, reference = kernel.spec.reference.__module__.split(".")
        file = kernel.share.function.__module__.rpartition(".")[2]
        if "samplers" not in folders:  # small ones that share a file each
            assert file == reference or file.startswith(f"{reference}_"), kernel.name


def test_laws_carry_their_ops_name():
    """Every file of the reference that has rows, or its folder, has a file of laws of the same
    name: in the reference, or where they take more than one kernel in conformance/kernel."""
    laws = {p.stem for p in (ROOT / "reference/laws").rglob("*.py")}
    laws |= {p.stem.removeprefix("test_") for p in (ROOT / "conformance/kernel").glob("test_*.py")}
    for op in OPS.values():
        names = op.reference.__module__.removeprefix("reference.").split(".")
        assert {"formats" if name == "weight_formats" else name for name in names} & laws, names


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_keeps_to_its_lines(room):
    """No room has more lines of Python than it may, nor a ceiling that is no more than a wish."""
    lines = sum(len(path.read_text().splitlines()) for path in sources(room))
    least = 0.95 * LINES[room] - 100
    assert least <= lines <= LINES[room], f"LINES has another number for {room}: it has {lines}"


def test_no_utils_modules():
    """There is no utils.py: a thing has a name and a room."""
    for room in ROOMS:
        assert not [p for p in sources(room) if p.stem in ("utils", "util", "helpers", "misc")]


def test_every_architecture_has_a_family():
    """What the configuration knows is what the table of models builds."""
    assert FAMILIES.keys() == ARCHITECTURES.keys()
    guide = (ROOT / "docs" / "guide" / "shell.md").read_text()
    assert [name for name in FAMILIES if f"`{name}`" not in guide] == []


@pytest.mark.parametrize("folder", ["conformance", "bench/tests"])
def test_no_test_imports_a_test(folder):
    """What tests share is in conformance/support, or in a module of bench/tests that is no test;
    programs that a test starts, which stand in its text, keep to that, too."""
    for path in sources(folder):
        assert not TEST_IMPORTED.findall(path.read_text()), path.name


def test_every_folder_of_tests_is_documented():
    """A row of docs/tests.md says what each is for and which marker conftest.py gives it."""
    page = (ROOT / "docs/tests.md").read_text()
    rows = re.findall(r"^\| (\w+) \| .+ \| (ut_\w+) \|$", page, re.MULTILINE)
    told = [(folder, marker) for marker, folders in MARKERS.items() for folder in folders]
    assert sorted(rows) == sorted(told)
    tested = {path.parent.name for path in sources("conformance") if path.name.startswith("test_")}
    assert {folder for folder, _ in rows} == tested
