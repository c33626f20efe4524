"""assay judge: anybody's kernel, from a file. Is it right, what laws does it keep, how fast?"""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bench.shell.display import demand_exchange, grid, teller
from bench.shell.op import parse_shape
from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from rich.table import Table

    from kernels.foreign.report import Report

TONES = {"held": "green", "broken": "red", "not asked": "dim"}


def judge(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE[:NAME]", help="Python, C, C++, CUDA, .so, .cubin or .json."),
    ] = "",
    op: str = option("", "The kernel's op, if the file does not tell."),
    format: str | None = option(None, "Weight format, e.g. Q4_0."),
    level: str = option("quick", "quick, full (laws, too) or deep."),
    numerics: str = option("", "exact, fast, bf16, …: selects the bound."),
    time: bool = option(False, "Time it in turns with others."),
    html: Path | None = option(None, "Write a shareable HTML page."),
    flags: str = option("", "C compiler flags in place of -O3 -march=native."),
    manifest: Path | None = option(None, "The manifest; by default FILE's .toml."),
    shape: str = option("", "One case only: its sizes, e.g. tokens=1."),
    values: str = option("normal", "The case's kind of values."),
    seed: int = option(0, "The case's seed."),
    secret: int | None = option(None, "Secret of a trial, to repeat its random choices."),
    threads: o.Threads = 0,
    seconds: float = option(10.0, "Seconds allowed for a call."),
    memory: float = option(4.0, "GiB of memory allowed."),
    processes: bool = option(False, "Allow it to start programs, as torch.compile does."),
    template: str = option("", "Write a skeleton file.", metavar="OP"),
    for_: str = option("c", "c, python, numba, triton, cuda or cubin.", "--for"),
    as_json: o.Json = False,
) -> None:
    """Judge a third-party kernel in a sandboxed child process.

    Exit 0 if it passed: by its numbers alone, whatever laws it breaks. A failure is reported with
    the smallest case that shows it and the command that runs it again.
    """
    from engine.shell.terminal import progress_bar
    from kernels.foreign.candidate import Candidate
    from kernels.foreign.child import Limits
    from kernels.foreign.judge import judge as judged
    from reference.table import OPS, find_op

    if template:
        _write(template, for_, format, file)
        return
    if not file:
        raise typer.BadParameter("which file? Or --template OP --for c to begin with one")
    bounds = Limits(seconds, memory=int(memory * 2**30), threads=threads, processes=processes)
    if file.endswith(".json"):
        demand_exchange("a solution")
        from bench.exchange.evaluate import judged as solved

        if time:
            raise typer.BadParameter("--time: assay exchange FOLDER times solutions")
        with progress_bar() as bar:
            tell = teller(bar, "judging")
            sizes = parse_shape(shape)
            report = solved(Path(file), level, bounds, secret, sizes, seed, tell)  # type: ignore[arg-type]
        _tell(report, html, as_json)
        return
    said = {"flags": tuple(shlex.split(flags))} if flags else {}
    candidate = Candidate.of(file, manifest, **said)
    wanted = op or candidate.manifest.op
    if not wanted:
        raise typer.BadParameter(f"which op is it a kernel of? --op, one of {', '.join(OPS)}")
    spec = find_op(wanted)
    formats = format or candidate.manifest.format or (spec.formats[0] if spec.formats else None)
    case = spec.case(parse_shape(shape), values, seed, formats) if shape and not time else None
    with progress_bar() as bar:
        tell = teller(bar, "judging")
        report = judged(
            candidate, wanted, format, level, bounds,  # type: ignore[arg-type]
            numerics=numerics, secret=secret, case=case, progress=tell,
        )  # fmt: skip
        if time and report.passed:
            from bench.ops.judged import timed

            sizes = parse_shape(shape)
            report = timed(report, candidate, spec, bounds, sizes, partial(teller, bar))
    _tell(report, html, as_json)


def _tell(report: "Report", html: Path | None, as_json: bool) -> None:
    """On standard output, and if wanted as a page; exit status 1 if it has not passed."""
    from engine.shell.terminal import stdout

    if html:
        from bench.report.page import judged_page

        html.write_text(judged_page(report))
    if as_json:
        print(json.dumps(report.json()))
    else:
        show(report)
        if html:
            stdout().print(f"wrote {html}", highlight=False, markup=False)
    if not report.passed:
        raise typer.Exit(1)


def _write(op: str, kind: str, format: str | None, file: str) -> None:
    from kernels.foreign.template import SUFFIXES, template
    from reference.table import find_op

    text = template(find_op(op), kind, format)
    path = Path(file or f"{op}{SUFFIXES[kind]}")
    with path.open("x") as target:
        target.write(text)
    judged = path.with_suffix(".cubin") if kind == "cubin" else path
    print(f"wrote {path}: fill in what it says, then assay judge {judged}")


def show(report: "Report") -> None:
    """The report for people."""
    from engine.shell.terminal import stdout

    console = stdout()
    say = partial(console.print, highlight=False, soft_wrap=True, markup=False)
    named = " ".join(filter(None, (report.op, report.format)))
    bound = "" if report.numerics == "exact" else f", numerics {report.numerics}"
    say(f"{report.candidate}: {named}, level {report.level}{bound}")
    say(report.verdict.upper(), style="bold green" if report.passed else "bold red", end="")
    counted = f"{report.cases} {'case' if report.cases == 1 else 'cases'}"
    figures = f"worst error/bound {report.worst:.3g}"
    if report.reason and report.ordinary != report.worst:
        figures += f", {report.ordinary:.3g} at ordinary values"
    if report.nmse < float("inf"):
        figures += f", NMSE {report.nmse:.1e}"
    say(f"  {counted}, {figures}, {report.seconds:.1f} s" if report.cases else "")
    if report.reason:
        say(f"  {report.reason}")
    if report.replay:
        say("again:", style="bold")
        say(f"  {report.replay}")
    asked = [law for law in report.laws if law.outcome != "not asked"]
    if asked:
        console.print(_laws(report))
    if rest := len(report.laws) - len(asked):
        say(f"{rest} laws were not asked{': --level full' if report.level == 'quick' else ''}")
    if report.times:
        console.print(_times(report))
    for note in report.notes:
        say(f"! {note}")
    if open_ := [name for name, why in report.sandbox if why]:
        say(f"! the sandbox did not hold: {', '.join(open_)}")


def _laws(report: "Report") -> "Table":
    from rich.markup import escape

    found = grid("law", "", "example")
    for law in report.laws:
        if law.outcome != "not asked":
            tone = TONES[law.outcome]
            found.add_row(law.name, f"[{tone}]{law.outcome}[/]", escape(law.example))
    return found


def _times(report: "Report") -> "Table":
    from engine.shell.terminal import figures

    found = grid("who", "shape", *figures("us", "of the limit", "its time over theirs"))
    for row in report.times:
        interval = f"{row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}]" if row.samples else row.note
        share = f"{100 * row.share:.0f}% {row.limit}" if row.share else ""
        taken = f"{1e6 * row.seconds:,.1f}" if row.samples else ""
        found.add_row(row.name, row.shape, taken, share, interval)
    return found
