"""Depth of tests, the program in this process, and a summary of what tests tried, in three lines.

Two profiles of Hypothesis: the default always generates the same cases; ASSAY_DEEP=1 generates many
more, new ones each time. Tests of kernels store certificates, quick or deep. A failure prints the
command that replays it.
"""

import gc
import io
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from conformance.cuda.emulator import Emulator
from conformance.support.child import started
from conformance.support.depth import DEEP
from conformance.support.machine_kernels import ABLE, serves
from conformance.support.models.spelling import Spelling
from engine import Engine
from engine.shell import main
from kernels.cuda.runtime.current import taking_the_place

# A first case compiles its kernel, and some kernels take few of an op's sizes.
_SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]
_COMMON = settings(deadline=None, suppress_health_check=_SLOW)
settings.register_profile("quick", _COMMON, derandomize=True, max_examples=40, database=None)
settings.register_profile("deep", _COMMON, max_examples=2000)
settings.load_profile("deep" if DEEP else "quick")

UNTIL = float(os.environ.get("ASSAY_UNTIL", "inf"))  # seconds since 1970
MANY = 1000  # tests: then a second process compiles while the first ones run, if they run in one
KERNELS = Path(__file__).with_name("kernel")
LONG = [Path(__file__).parent / file for file in ("cuda/test_engine.py", "rtutils/test_readme.py")]
MARKERS = {  # the folders of each
    "ut_kernel": {"kernel", "cuda", "bugs", "mutants", "foreign", "exploits"},
    "ut_llama": {
        "llama", "families", "gguf", "tokenizer", "sampling", "convert", "quantise", "cache",
        "schedule", "perplexity",
    },
    "ut_offloader": {"offloader"},
    "ut_parallel": {"parallel"},
    "ut_rtutils": {"rtutils", "support", "packages", "shell"},
    "ut_powerinfer": {"powerinfer"},
    "ut_speculation": {"speculation"},
}  # fmt: skip
SERVING = {(kernel.op, kernel.variant, kernel.format) for kernel in ABLE if serves(kernel)}
NAMED = re.compile(r"(\w+)/(cpu|cuda)/(\w+)(?:/(\w+))?")  # a kernel, or a bug in CUDA
COMPILE = """
from kernels.table import KERNELS
for kernel in reversed([k for k in KERNELS if not k.missing()]):
    for share in (kernel.share, *([kernel.pack.share] if kernel.pack else [])):
        share.compile()
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Kernels first: processes compile and certify different ones, and the engine's tests find them
    on disk. Then long files, so that nothing waits for them at the end. Marks tests as
    `exhaustive`."""
    items.sort(key=lambda item: (KERNELS not in item.path.parents, item.path not in LONG))
    for item in items:
        if KERNELS.parent in item.path.parents:
            folder = item.path.relative_to(KERNELS.parent).parts[0]
            item.add_marker(next(name for name, folders in MARKERS.items() if folder in folders))
            if folder == "cuda" or _of_a_further_variant(item):
                item.add_marker("exhaustive")


def _of_a_further_variant(item: pytest.Item) -> bool:
    """Whether its kernel or bug is of a variant neither portable nor this machine's choice."""
    found = NAMED.search(item.name)
    if not found:
        return False
    op, target, variant, layout = found.groups()
    return target == "cuda" or (op, variant, layout) not in SERVING


def pytest_runtest_setup(item: pytest.Item) -> None:
    """On a machine too slow for all of them, exhaustive tests end at a time, and say so."""
    if time.time() > UNTIL and item.get_closest_marker("exhaustive"):
        pytest.skip("not tried: the time of ASSAY_UNTIL is over")


def pytest_collection_finish() -> None:
    """Freeze the collected tests: the garbage collector need not visit them again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _compiled_ahead(request: pytest.FixtureRequest) -> Iterator[None]:
    """Another core compiles kernels from the table's other end, which are then loaded from disk."""
    alone = "PYTEST_XDIST_WORKER" not in os.environ and (os.cpu_count() or 1) > 1
    if request.session.testscollected < MANY or not alone:
        yield
        return
    root = request.config.rootpath
    with started(sys.executable, "-c", COMPILE, cwd=root, stdout=None, stderr=None):
        yield


@pytest.fixture(scope="session", autouse=True)
def _emulated() -> Iterator[None]:
    """CUDA kernels run on this CPU."""
    with taking_the_place(Emulator()):
        yield


@pytest.fixture
def inside(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Exit code, stdout and stderr of the program, run in this process; it reads `input`, if
    any."""

    def run(*arguments: str | int | Path, input: str | None = None) -> tuple[int, str, str]:
        if input is not None:
            monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input.encode())))
        monkeypatch.setattr(sys, "argv", ["assay", *map(str, arguments)])
        monkeypatch.setattr("engine.shell.terminal.stderr.quiet", False)  # whatever -q did before
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return (code if isinstance(code, int) else 0, *capfd.readouterr())

    return run


@pytest.fixture(scope="session")
def spelling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small model that can output any text; tests must not write to it."""
    return Spelling(format="Q8_0").write(tmp_path_factory.mktemp("spelling") / "small.gguf")


@pytest.fixture(scope="session")
def story() -> Iterator[Engine]:
    """The embedded model, on one thread, with room for three texts."""
    with Engine.load("story", threads=1, sequences=3) as engine:
        yield engine


@pytest.fixture(scope="session")
def llama_cpp() -> ModuleType:
    """llama.cpp, through conformance/llama/peers."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is missing: make test-peers")
    return import_module("conformance.llama.peers.llama_cpp_python")


@pytest.fixture(scope="session")
def hugging_face() -> ModuleType:
    """transformers, through conformance/llama/peers."""
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason=f"{package} is missing: make test-transformers")
    return import_module("conformance.llama.peers.hugging_face")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests recorded: "judged" as (kernel, cases), "planted" as (bug, whether killed) and
    "mutants" as (how many were killed, of how many)."""
    noted = [
        word
        for outcome in ("passed", "failed")
        for report in terminalreporter.stats.get(outcome, [])
        for word in getattr(report, "user_properties", [])
    ]
    judged = [value for name, value in noted if name == "judged"]
    planted = [value for name, value in noted if name == "planted"]
    mutants = [value for name, value in noted if name == "mutants"]
    if not (judged or planted or mutants):
        return
    terminalreporter.section("conformance")
    if judged:
        parts = [kernel.split("/") for kernel, _ in judged]
        ops, variants = {p[0] for p in parts}, {tuple(p[:3]) for p in parts}
        formats = {p[3] for p in parts if len(p) > 3}
        terminalreporter.line(
            f"kernels: {len(ops)} ops, {len(variants)} variants, {len(formats)} formats,"
            f" {sum(cases for _, cases in judged)} cases judged"
        )
    if planted:
        killed = sum(dead for _, dead in planted)
        terminalreporter.line(f"planted bugs: {killed} of {len(planted)} killed")
    for killed, tried in mutants:
        terminalreporter.line(f"mutants: {killed} of {tried} killed")
