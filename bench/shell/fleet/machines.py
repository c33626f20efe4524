"""assay fleet certify, tune and bench: the same on every machine, and beside each other."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from bench.shell.fleet.distribution import each, named
from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from bench.fleet.distribution import Machine
    from bench.fleet.matrix import Matrix
    from bench.race.results import Run

STEPS = "--steps"  # so that there is something to set against the machine's limits


def certify(
    asked: typer.Context,
    op: str | None = option(None, "Kernels of this op only."),
    again: bool = option(False, "Repeat trials of certified kernels."),
    out: Path = option(Path("fleet-certificates.jsonl"), "Output file of certificates.", "-o"),
    as_json: o.Json = False,
) -> None:
    """Try kernels on every machine, and show which are proved, fast or refused where.

    Machines store their certificates; these are also returned as lines of JSON with the machine's
    key and worker. The matrix has a column for each kind of machine. Proved: it passed its trials;
    fast: an engine there chooses it first; refused: a trial failed. Exit 1 if any was refused.
    """
    from bench.fleet.matrix import Matrix
    from bench.fleet.shares import Certify
    from bench.race.results import append_line
    from engine.atomic_write import check
    from engine.shell.certify import kernels_of

    kernels_of(op)
    check(out)
    matrix = Matrix()
    for machine, found in each(asked, Certify(op, again), "certifying"):
        matrix.add(found.about.machine, found.about.device, found.states)
        for certificate in found.certificates:
            append_line(out, _told(machine) | {"certificate": asdict(certificate)})
    _show_matrix(matrix, as_json)
    if any(row["refused"] for row in matrix.summary()):
        raise typer.Exit(1)


def _told(machine: "Machine") -> dict[str, Any]:
    """Where something comes from, for programs."""
    about = machine.about
    return {"machine": about.machine, "device": about.device, "worker": machine.name}


def _show_matrix(matrix: "Matrix", as_json: bool) -> None:
    from engine.shell.terminal import note, print_table

    frame = matrix.frame()
    for kernel, kind, told in matrix.differing():
        counts = ", ".join(f"{count} {state}" for state, count in told.items())
        note(f"machines of {kind} differ on {kernel}: {counts}")
    if as_json:
        rows = {kernel: dict(row) for kernel, row in frame.iterrows()}
        print(json.dumps({"machines": matrix.summary(), "kernels": rows}))
        return
    print_table(("kernel", *frame.columns), ((kernel, *row) for kernel, *row in frame.itertuples()))
    columns = "machine", "device", "machines", "fast", "proved", "refused"
    print_table(columns, ([row[column] for column in columns] for row in matrix.summary()))


def tune(
    asked: typer.Context,
    model: o.ModelName,
    threads: o.Threads = 0,
    seconds: float = option(30.0, "Approximate measuring time."),
    again: bool = option(False, "Repeat known measurements."),
    out: Path = option(Path("fleet-tunings.jsonl"), "Output file of tunings.", "-o"),
    as_json: o.Json = False,
) -> None:
    """Tune kernels on each machine at a model's sizes; each stores the result for later loads.

    Tunings come back as lines of JSON with the machine's key and worker.
    """
    from bench.fleet.shares import Tune
    from bench.race.results import append_line
    from engine.atomic_write import check
    from engine.embedded import resolve
    from engine.shell.terminal import print_table
    from engine.shell.tune import NOTHING

    if not seconds > 0:
        raise typer.BadParameter(f"--seconds is more than 0, got {seconds:g}")
    check(out)
    file, rows = named(resolve(model)), list[dict[str, Any]]()
    for machine, found in each(asked, Tune(file, threads, seconds, again), "tuning", file):
        for one in found:
            rows.append(_told(machine) | {"tuning": asdict(one)})
            append_line(out, rows[-1])
    if as_json:
        print(json.dumps(rows))
        return
    if not rows:
        print(NOTHING)
        return
    print_table(
        ("machine", "kernel", "threads", "sizes", "chosen", "gain"),
        (
            (row["machine"], one["kernel"], one["threads"], one["shape"],
             " ".join(f"{name}={value}" for name, value in one["values"].items()),
             f"{one['gain']:.3f}")
            for row in rows for one in [row["tuning"]]
        ),
    )  # fmt: skip


def bench(
    asked: typer.Context,
    model: o.ModelName,
    *,
    prompt: str = option("512", "As in assay bench.", "-p"),
    generate: str = option("128", "As in assay bench.", "-n"),
    threads: str = option("0", "As in assay bench.", "-t"),
    repeats: int = option(5, "Minimum number of samples.", "-r", "--repetitions"),
    seconds: float = option(10.0, "Time limit while the median is not within 1%."),
    peers: str = option("none", "Peers, where installed."),
    results: Path | None = option(None, "The folder of stored runs."),
    as_json: o.Json = False,
) -> None:
    """Time a model on every machine, alone there, workers of one host in turns.

    Each machine's run is kept beside those measured here, with its conditions and limits, so that
    `bench.race.frames.load()` has all machines in one frame, and `assay report` sets each against
    its own limits.
    """
    from bench.fleet.shares import Bench
    from bench.race.results import read, results_folder
    from engine.atomic_write import atomic_write
    from engine.embedded import resolve

    folder, file = results or results_folder(), named(resolve(model))
    folder.mkdir(parents=True, exist_ok=True)
    words = "-p", prompt, "-n", generate, "-t", threads, "-r", str(repeats)
    job = Bench(file, (*words, "--seconds", str(seconds), "--peers", peers, STEPS))
    runs = []
    for _, (name, data) in each(asked, job, "timing", file):
        with atomic_write(folder / name) as kept:
            kept.write(data)
        runs.append(read(folder / name))
    _show_runs(runs, as_json)


def _show_runs(runs: "Sequence[Run]", as_json: bool) -> None:
    """Tests, and the steps, which have limits."""
    from bench.race import frames
    from engine.shell.terminal import figures, print_table

    found = frames.measured(runs)
    found = found[(found["samples"].map(len) > 0) & (found["tokens"] > 0)]
    steps = "step of " + found["tokens"].astype(str)
    found["test"] = found["test"].mask(found["bench"] == "node", steps)
    columns = ["test", "device", "threads", "contender", "tokens_per_second", "share"]
    rows = found.sort_values(["bench", "test", "threads", "contender", "device"])[columns]
    if as_json:
        print(rows.to_json(orient="records"))
        return
    rates = figures("tokens/s", "of its limit")
    print_table(
        ("test", "machine", *figures("threads"), "by", *rates),
        (
            (test, device, int(threads), by, f"{rate:,.2f}", f"{share:.0%}" if share else "")
            for _, test, device, threads, by, rate, share in rows.itertuples()
        ),
    )
