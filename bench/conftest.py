"""`pytest bench/ --benchmark` measures; without that flag every benchmark runs once and its output
is checked.

Each measurement is on disk as soon as it is made: see bench/race/results.py.
"""

from collections.abc import Iterator

import pytest

from bench.engine.engine_race import Field, field_of
from bench.machine.conditions import conditions
from bench.machine.limits import Limits, limits
from bench.ops.cases import CACHES
from bench.ops.op_run import Lab
from bench.race.benchmarking import CLOCK, Recorder
from bench.race.plan import Plan
from bench.race.results import read
from bench.report import card, quality
from bench.report.lookup import rows_of
from bench.report.page import table_lines
from bench.shell.display import teller
from engine.shell.terminal import progress_bar
from kernels.cpu.runtime.team import Team
from kernels.dispatch import first_of

PLAN = pytest.StashKey[Plan]()
RECORDER = pytest.StashKey[Recorder]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("assay's benchmarks")
    group.addoption("--benchmark", action="store_true", help="measure; without it: run once, check")
    group.addoption("--quick", action="store_true", help="small shapes, few samples: 3 minutes")
    group.addoption("--models", help="names of data/shapes.toml, with commas between")
    group.addoption("--shapes", metavar="FILE", help="shapes of your own, as data/shapes.toml")
    group.addoption("--threads", type=int, default=0, help="0: one per core that it may use")
    group.addoption("--most-seconds", type=float, help="leave out kernels whose calls take longer")
    group.addoption("--results", metavar="FOLDER", help="where runs are kept")
    group.addoption(
        "--engine-model", metavar="MODEL", action="append", help="for the engine's; may repeat"
    )
    group.addoption("--peers", help="names with commas between, or none; all by default")


@pytest.hookimpl(tryfirst=True)  # before pytest-benchmark reads its options
def pytest_configure(config: pytest.Config) -> None:
    plan = config.stash[PLAN] = Plan.of(config)
    if not plan.measuring:
        config.option.benchmark_disable = True
    now = conditions()  # before this run adds its own load
    config.stash[RECORDER] = Recorder(plan.folder, now, Limits.unprobed(), plan.measuring)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With --benchmark the lab's own tests are deselected: they would only disturb."""
    benchmarks = [item for item in items if "benchmark" in getattr(item, "fixturenames", ())]
    for item in benchmarks:
        item.add_marker(pytest.mark.benchmark(timer=CLOCK))
    if config.stash[PLAN].measuring:
        config.hook.pytest_deselected(items=[item for item in items if item not in benchmarks])
        items[:] = benchmarks


def pytest_collection_finish(session: pytest.Session) -> None:
    """Probe the machine's limits before a measuring run, which takes a while the first time."""
    plan = session.config.stash[PLAN]
    if plan.measuring and session.items and not session.config.option.collectonly:
        with progress_bar() as bar:
            progress = teller(bar, "probing the machine (once)")
            session.config.stash[RECORDER].limits = limits(sorted({1, plan.threads}), progress)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize benchmarks with the plan's cases. Kernels that neither this machine nor one
    without features would choose are `exhaustive`."""
    plan = metafunc.config.stash[PLAN]
    if {"case", "cache"} <= set(metafunc.fixturenames):
        found, rows = [(case, cache) for case in plan.cases() for cache in CACHES], []
        able = list({case.kernel.name: case.kernel for case, _ in found}.values())
        serving = first_of(able) | first_of(k for k in able if not k.requires)
        for case, cache in found:
            marks = () if case.kernel.name in serving else (pytest.mark.exhaustive,)
            rows.append(pytest.param(case, cache, marks=marks, id=f"{case} {cache}"))
        metafunc.parametrize(("case", "cache"), rows)
    if "kernel" in metafunc.fixturenames:
        metafunc.parametrize("kernel", plan.kernels(), ids=lambda kernel: kernel.name)
    if "packed" in metafunc.fixturenames:
        metafunc.parametrize("packed", plan.packings(), ids=lambda p: f"{p[0].name} {p[1]}x{p[2]}")
    if "engine_path" in metafunc.fixturenames:
        metafunc.parametrize("engine_path", plan.engine_models, ids=lambda path: path.stem)
    # Tests with the same model are adjacent, so that it stays open between them.
    if "figure_race" in metafunc.fixturenames:
        races = [(path, name) for path in plan.engine_models for name in plan.card.races]
        names = [f"{path.stem} {name}" for path, name in races]
        both = ("racing", "figure_race")
        metafunc.parametrize(both, races, ids=names, indirect=both[:1], scope="module")
    if "engine_test" in metafunc.fixturenames:
        tests = [
            (setup, test) for setup in plan.engine_setups for test in plan.engine_tests(setup[1])
        ]
        names = [f"{path.stem} {s.threads} threads {test.name}" for (path, s), test in tests]
        both = ("engine_field", "engine_test")
        metafunc.parametrize(both, tests, ids=names, indirect=both[:1], scope="module")


@pytest.fixture(scope="session")
def plan(pytestconfig: pytest.Config) -> Plan:
    return pytestconfig.stash[PLAN]


@pytest.fixture(scope="session")
def recorder(pytestconfig: pytest.Config) -> Recorder:
    """Writes measurements to the results folder."""
    return pytestconfig.stash[RECORDER]


@pytest.fixture(scope="session")
def lab(plan: Plan, recorder: Recorder) -> Iterator[Lab]:
    """Threads and limits for benchmarks of ops."""
    with Team(plan.threads) as team:
        yield Lab(team, recorder.limits, plan.most_seconds)


@pytest.fixture(scope="module")
def engine_field(request: pytest.FixtureRequest, plan: Plan) -> Iterator[Field]:
    """Our engine and its peers, each with the model open in its own process."""
    model, setup = request.param
    with field_of(model, setup, plan.peers) as opened:
        yield opened


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print where the results are, and how to view them."""
    config = terminalreporter.config
    recorder = config.stash[RECORDER]
    if recorder.results is None:
        return
    rows = rows_of([read(recorder.results.path)])
    if found := card.figures(rows):
        terminalreporter.section("speed card")
        for line in table_lines(card.card(found, card.unmeasured(rows, found))):
            terminalreporter.line(line)
    left = (("formats", quality.section(rows)), ("neurons", quality.sparsity_section(rows)))
    for title, section in left:
        for figures in section.tables:
            terminalreporter.section(title)
            for line in table_lines(figures):
                terminalreporter.line(line)
    terminalreporter.section("results")
    terminalreporter.line(f"{recorder.results.path}")
    if recorder.conditions.busy:
        terminalreporter.line(f"figures are doubtful: {recorder.conditions.busy}", yellow=True)
    for line in recorder.rejected:
        terminalreporter.line(f"rejected: {line}", red=True)
