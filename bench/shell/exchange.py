"""assay exchange: solutions as flashinfer-bench has them, judged, timed and written as traces."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.shell.display import demand_exchange, names, teller
from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from bench.exchange.evaluate import Evaluated


def exchange(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A dataset: definitions/, solutions/, …")
    ],
    definition: str = option("", "This definition only."),
    solution: str = option("", "Names, comma-separated; all by default."),
    level: str = option("quick", "quick or deep."),
    threads: o.Threads = 1,
    seconds: float = option(2.0, "Time limit at each workload."),
    traces: bool = option(False, "Append results to the folder's traces/."),
    as_json: o.Json = False,
) -> None:
    """Judge solutions of flashinfer-bench's format against their definitions' references.

    References are PyTorch and run in this process; solutions run in sandboxed children.
    Bounds of definitions are not derived. Exit 1 if a solution failed.
    """
    demand_exchange("assay exchange")
    from bench.exchange.dataset import Dataset, ExchangeError
    from bench.exchange.evaluate import evaluate
    from bench.machine.limits import limits
    from bench.race.experiment import Rule
    from engine.shell.terminal import note, progress_bar, stdout
    from kernels.cpu.runtime.cores import physical_cores
    from kernels.foreign.judge import LEVELS

    if level not in LEVELS:
        raise typer.BadParameter(f"--level is one of {', '.join(LEVELS)}, got {level!r}")
    if not seconds > 0:
        raise typer.BadParameter(f"--seconds is above 0, got {seconds:g}")
    dataset = Dataset(folder)
    if definition and definition not in dataset.definitions:
        there = ", ".join(dataset.definitions)
        raise ValueError(f"{folder} has no definition {definition}: {there}")
    wanted = names(solution)
    chosen = [
        s
        for s in dataset.solutions
        if definition in ("", s.definition) and (not wanted or s.name in wanted)
    ]
    if not chosen:
        raise ValueError(f"{folder} has no such solution")
    count = threads or physical_cores()
    found: list[Evaluated] = []
    told = 0
    with progress_bar() as bar:
        tell = partial(teller, bar)
        here = limits((count,), tell("probing the machine (once)"))
        judging = tell("judging solutions")
        rule = Rule(least=5, cap_seconds=seconds, most=50)
        for one in evaluate(dataset, chosen, here, level, count, rule):  # type: ignore[arg-type]
            told += 1
            judging(told, len(chosen))
            if isinstance(one, ExchangeError):
                note(str(one))
            else:
                found.append(one)
    if as_json:
        print(json.dumps([to_json(one) for one in found]))
    else:
        _show(found)
    if traces:
        for path in dataset.add([trace for one in found for trace in one.traces]):
            stdout().print(f"wrote {path}", highlight=False, markup=False)
    if any(not one.report.passed for one in found):
        raise typer.Exit(1)


def to_json(one: "Evaluated") -> dict[str, Any]:
    return {
        "solution": one.solution.name,
        "definition": one.solution.definition,
        "report": one.report.json(),
        "traces": [json.loads(t.model_dump_json(exclude_unset=True)) for t in one.traces],
    }


def _show(found: "list[Evaluated]") -> None:
    from engine.shell.terminal import print_table

    rows = []
    for one in found:
        for trace in one.traces:
            evaluation = trace.evaluation
            speed, errors = evaluation.performance, evaluation.correctness
            extra = errors.extra if errors else None
            rows.append((
                one.solution.name,
                trace.definition,
                " ".join(f"{axis}={size}" for axis, size in trace.workload.axes.items()),
                evaluation.status.value,
                f"{speed.latency_ms:.4f}" if speed else "",
                f"{speed.speedup_factor:.2f}" if speed else "",
                f"{extra['sol_score']:.2f}" if extra else "",
                one.report.reason or "the bound is not derived",
            ))  # fmt: skip
    columns = "solution", "definition", "axes", "status", "ms", "speedup", "SOL", "why"
    print_table(columns, rows)
