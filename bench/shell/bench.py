"""assay bench: prompt and generation speed of a model, as the field's tables have them."""

import json
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.shell.display import names, numbers
from engine.shell.command_line import options as o
from engine.shell.command_line.command import as_usage
from engine.shell.command_line.groups import Only, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from bench.contenders.contender import EngineTest
    from bench.race.results import Measurement, Results

DEPTH = 128  # tokens before the decode that is profiled
OF_A_RACE = Only("batch", "kv_format", "sparse", "threshold", "union", "ram_budget")


def bench(
    model: o.ModelName,
    *,
    prompt: str = option("512", "Prompt lengths, comma-separated; 0: none.", "-p"),
    generate: str = option("128", "Generated tokens, comma-separated; 0: none.", "-n"),
    depth: str = option("0", "Tokens already in the cache, comma-separated.", "-d"),
    parallel: str = option("", "Concurrent sequences, e.g. 1,2,4: the batched table.", "--npl"),
    threads: str = option("0", "Comma-separated; 0: one per available core.", "-t"),
    repeats: int = option(5, "Minimum number of samples.", "-r", "--repetitions"),
    seconds: float = option(10.0, "Time limit while the median is not within 1%."),
    loading: Annotated[o.Loading, OF_A_RACE],
    peers: str = option(
        "llama.cpp,transformers",
        "Who else runs, where installed: names with commas, or none; NAME=PROGRAM is a"
        " program with llama-bench's options.",
    ),
    steps: bool = option(False, "Also profile a step of each kind: see assay profile."),
    results: Path | None = option(None, "The folder of stored runs."),
    as_json: o.Json = False,
) -> None:
    """Time a model's prompts (pp) and generation (tg), peers in turns.

    Figures are tokens/s; tokens are random and nothing is sampled, as in llama-bench. Results are
    also stored as a run (see `assay report`), with --steps how close decode and prompt come to the
    machine's limits. With a --ram-budget Assay runs alone: `python -m bench.offload_speed` has
    peers under the same memory limit.
    """
    from bench.contenders.contender import Setup
    from bench.contenders.racer import named
    from bench.engine.engine_race import field_of
    from bench.machine.conditions import conditions
    from bench.race.experiment import Rule, race
    from bench.race.results import Results, results_folder
    from engine.embedded import resolve
    from engine.shell.terminal import note, progress_bar, stdout
    from kernels.cpu.runtime.cores import physical_cores

    if repeats < 1:
        raise typer.BadParameter(f"--repetitions is at least 1, got {repeats}")
    if not seconds >= 0:
        raise typer.BadParameter(f"--seconds is 0 or more, got {seconds:g}")
    if steps and loading.ram_budget:
        raise typer.BadParameter("--steps and --ram-budget exclude each other")
    others = () if peers == "none" else names(peers)
    with as_usage():
        for peer in others:
            named(peer)
    tests = _tests(
        numbers(prompt, "-p"),
        numbers(generate, "-n"),
        numbers(depth, "-d"),
        numbers(parallel, "--npl", least=1),
    )
    path, before = resolve(model), conditions()
    _demand_context(path, tests)
    if before.busy:
        note(before.busy)
    kept: Results | None = None
    rule = Rule(least=repeats, cap_seconds=seconds, most=max(repeats, 50))
    rows: list[Measurement] = []
    own = {name: getattr(loading, name) for name in OF_A_RACE.names}
    own["ram_budget"] = loading.ram_budget or 0
    with progress_bar() as bar:
        counts = [count or physical_cores() for count in numbers(threads, "-t")]
        task = bar.add_task("opening the model", total=len(tests) * len(counts))
        for count in counts:
            replace(loading, threads=count).options()  # wrong usage is said here
            setup = Setup(
                count,
                context=max(test.context for test in tests),
                sequences=max(test.parallel for test in tests),
                **own,
            )
            with field_of(path, setup, ("assay", *others)) as field:
                kept = kept or Results(results or results_folder(), before)
                for test in tests:
                    bar.update(task, description=test.name)

                    def round_done(done: int, name: str = test.name) -> None:
                        bar.update(task, description=f"{name}, round {done}")

                    found = field.experiment(test).run(rule, partial(race, progress=round_done))
                    kept.add(*found)
                    rows += found
                    bar.update(task, advance=1)
    if steps and kept:
        for count in counts:
            _profile(model, replace(loading, threads=count), kept)
    if as_json:
        print(json.dumps([to_json(row) for row in rows]))
        return
    stdout().print(table(rows))
    for row in {(row.contender, row.settings): row for row in rows if row.settings}.values():
        stdout().print(f"{row.contender}: {row.settings}", highlight=False, soft_wrap=True)
    for row in {row.contender: row for row in rows if not row.samples}.values():
        stdout().print(f"{row.contender} is absent: {row.note}", highlight=False, soft_wrap=True)


def _profile(model: str, loading: o.Loading, kept: "Results") -> None:
    """Add what a decode and a prompt's step take, node by node, against the machine's limits."""
    from bench.shell.profile import against_limits
    from engine.shell.show import loaded

    with loaded(model, loading, quiet=True) as engine:
        cells = engine.model.cells.capacity
        for tokens, depth in ((1, min(DEPTH, cells - 1)), (min(loading.batch, cells), 0)):
            found, limits = against_limits(engine, tokens, depth)
            kept.raise_limits(limits.to_json())
            kept.add(*found.measurements())


def _demand_context(path: Path, tests: "Sequence[EngineTest]") -> None:
    """ValueError for a test that asks more of the model than it was made for."""
    from engine.gguf.file import GGUFFile
    from engine.metadata.config import config_of

    with GGUFFile(path) as file:
        context = config_of(file.metadata, 0).context
    if long := [test for test in tests if test.sequence > context]:
        raise ValueError(
            f"{path}: its context is {context} tokens, {long[0].name} wants {long[0].sequence}"
        )


def _tests(
    prompts: tuple[int, ...],
    generates: tuple[int, ...],
    depths: tuple[int, ...],
    parallels: tuple[int, ...],
) -> "list[EngineTest]":
    """Every prompt and generation at every depth, then every batch."""
    from bench.contenders.contender import EngineTest

    prompts, generates = (tuple(filter(None, counts)) for counts in (prompts, generates))
    tests = []
    for d in depths:
        tests += [EngineTest("pp", prompt=p, depth=d) for p in prompts]
        tests += [EngineTest("tg", generate=g, depth=d) for g in generates]
    for n, p, g in product(parallels, prompts, generates):
        tests.append(EngineTest("batched", prompt=p, generate=g, parallel=n))
    if not tests:
        raise typer.BadParameter("nothing to time: give -p or -n tokens")
    return tests


def to_json(row: "Measurement") -> dict[str, Any]:
    """Rates in tokens/s; those of an absent peer are null."""
    import numpy as np

    rates = [row.tokens / seconds for seconds in row.samples]
    return {
        "test": row.test,
        "contender": row.contender,
        "model": row.model,
        "threads": row.threads,
        "settings": row.settings,
        "median": float(np.median(rates)) if rates else None,
        "mean": float(np.mean(rates)) if rates else None,
        "sd": float(np.std(rates, ddof=1)) if len(rates) > 1 else None,
        "samples": rates,
        "note": row.note,
    }


def table(rows: "Sequence[Measurement]") -> "Table":
    """One row a test and contender; how many times as fast Assay is as each peer."""
    from bench.contenders.contender import OURS
    from bench.race.ratio import ratio
    from engine.shell import terminal

    rates = terminal.figures("tokens/s", "sd", "median")
    found = terminal.table("test", *terminal.figures("threads"), "by", *rates, "Assay is")
    order = list(dict.fromkeys((row.test, row.threads) for row in rows))
    present = [row for row in rows if row.samples]
    for test in order:
        found.add_section()
        taken = {row.contender: row for row in present if (row.test, row.threads) == test}
        for name, row in taken.items():
            told, times = to_json(row), ""
            if name != OURS:
                speed = ratio(row.samples, taken[OURS].samples, together=1)
                times = f"{speed.value:.2f}x  [{speed.low:.2f}, {speed.high:.2f}]"
            found.add_row(
                test[0],
                str(test[1]),
                name,
                f"{told['mean']:,.2f}",
                f"{told['sd'] or 0:,.2f}",
                f"{told['median']:,.2f}",
                times,
            )
    return found
