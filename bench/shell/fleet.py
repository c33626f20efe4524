"""assay fleet: the work of other commands, on every machine of a Dask cluster."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.command import Command, Program
from engine.shell.command_line.groups import Only, option, spread

if TYPE_CHECKING:
    from bench.fleet.dealing import Fleet, Machine
    from bench.fleet.files import Named
    from engine.perplexity import Text

LOCAL = "local:"  # and how many workers are started here
OF_BITS = Only("threads", "batch", "kv_format", "variant", "strict")
TEXTS = 8  # of a share
PAIRS = 16
CASES = 40
SCORED = {"id", "prompt", "continuation"}


class Fleets(Program):
    """`--local N` stands for a scheduler."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for at, word in enumerate(args[:2]):
            name, equals, count = word.partition("=")
            if name == "--local":
                taken = 1 if equals else 2
                count = count if equals else next(iter(args[at + 1 : at + 2]), "")
                args = [*args[:at], LOCAL + count, *args[at + taken :]]
        return super().parse_args(ctx, args)


fleet = typer.Typer(
    cls=Fleets,
    help="Run a command on every machine of a Dask cluster.\n\n"
    "SCHEDULER is its address, such as tcp://host:8786; --local N in its place starts N workers"
    " on this machine. Workers have to have this very assay, and tools of the same versions; those"
    " that have not are told by name and get no share. pip install 'assay[fleet]'",
    short_help="Run a command on every machine of a Dask cluster.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@fleet.callback()
def options(
    asked: typer.Context,
    scheduler: Annotated[
        str, typer.Argument(metavar="SCHEDULER", help="Its address, or --local N.")
    ],
) -> None:
    """What the commands of a fleet have in common."""
    asked.obj = scheduler


def command(function: Callable[..., None]) -> Callable[..., None]:
    """One of the fleet's."""
    return fleet.command(cls=Command)(spread(function))


@contextmanager
def opened(asked: typer.Context, *files: "Named") -> "Iterator[Fleet]":
    """The fleet that was asked for; it is closed, and with it what was under way, at the end."""
    from bench.packages import lacking
    from engine.errors import PackageError
    from engine.shell.show import note

    if lacking(("distributed",)):
        raise PackageError("a fleet needs Dask: pip install 'assay[fleet]'")
    from bench.fleet.dealing import Fleet, local

    scheduler = asked.obj
    with ExitStack() as stack:
        if scheduler.startswith(LOCAL):
            count = scheduler.removeprefix(LOCAL)
            if not (count.isascii() and count.isdigit() and 0 < int(count) < 1000):
                raise typer.BadParameter(f"--local is {count!r}: want workers, from 1 up")
            scheduler = stack.enter_context(local(int(count))).scheduler_address
        yield stack.enter_context(Fleet(scheduler, note, files))


@contextmanager
def bar(name: str, total: int | None) -> Iterator[Callable[[], None]]:
    """A bar of a fleet's shares: a function to be called as each is there."""
    from engine.shell.show import progress_bar

    with progress_bar() as shown:
        task = shown.add_task(name, total=total)
        yield lambda: shown.update(task, advance=1)


def named(path: Path) -> "Named":
    from bench.fleet.files import Named

    return Named.of(path)


def model_of(model: str, loading: o.Loading, **more: Any) -> Any:
    """A model as workers hold it; wrong usage is said here."""
    from bench.fleet.shares import Model
    from engine.embedded import resolve

    loading.options()
    return Model(named(resolve(model)), loading, **more)


@command
def perplexity(
    asked: typer.Context,
    model: o.ModelName,
    file: o.TextFile,
    *,
    context: o.Chunk = 0,
    chunks: o.Chunks = None,
    loading: Annotated[o.Loading, OF_BITS],
    as_json: o.Json = False,
) -> None:
    """Measure a model's perplexity on a text, its chunks dealt out.

    What is printed is what `assay perplexity` prints, to the last digit, however many workers there
    are and whichever die.
    """
    from bench.fleet.shares import Perplexity
    from engine.perplexity import Tally
    from engine.shell.perplexity import MOST_OUTPUTS, as_dict, read_text, show

    begun, tally = time.monotonic(), Tally()
    text, _ = read_text(model, file, context, chunks, None)
    loading = replace(loading, context=text.context)
    held = model_of(model, loading, outputs=min(text.scored, MOST_OUTPUTS))
    for (scores,) in dealt(asked, Perplexity(held), held, text):
        tally.add(scores)
    if as_json:
        print(json.dumps(as_dict(tally, text, time.monotonic() - begun, ())))
    else:
        show(tally.perplexity(), None, text)


def dealt(asked: typer.Context, job: Any, held: Any, text: "Text") -> Iterator[Any]:
    """What a job finds for each chunk of a text, in order."""
    passages = [[passage] for passage in text.passages()]
    with opened(asked, held.file) as machines, bar("chunks", len(passages)) as advance:
        machines.agree(job, passages[0])
        for _, found in machines.deal(job, passages):
            advance()
            yield found


@command
def imatrix(
    asked: typer.Context,
    model: o.ModelName,
    file: o.TextFile,
    *,
    out: Path = option(Path("imatrix.gguf"), "Where the matrix goes.", "-o"),
    context: o.Chunk = 0,
    chunks: o.Chunks = None,
    as_json: o.Json = False,
    loading: Annotated[o.Loading, OF_BITS],
) -> None:
    """Make an importance matrix, a text's chunks dealt out.

    The file is that of `assay imatrix`, byte for byte: what chunks add is summed in their order.
    """
    from bench.fleet.shares import Imatrix
    from engine.aside import check
    from engine.embedded import resolve
    from engine.passes.observe import Observed, joined
    from engine.shell.imatrix import keep
    from engine.shell.perplexity import read_text

    text, _ = read_text(model, file, context, chunks, None)
    check(out, None if str(file) == "-" else file)
    check(out, resolve(model))
    held = model_of(model, replace(loading, context=text.context), observing=True)
    sums: dict[str, Observed] = {}
    for (met,) in dealt(asked, Imatrix(held), held, text):
        sums = joined(sums, met)
    keep(sums, text, out, file, as_json)


@command
def embed(
    asked: typer.Context,
    model: o.ModelName,
    text: Annotated[str | None, typer.Argument(help="Standard input if absent.")] = None,
    *,
    file: Path | None = option(None, "Read them here; - is standard input.", "-f"),
    pooling: str = option("mean", "As in assay embed.", metavar="KIND"),
    normalize: bool = option(True, "Vectors have length 1."),
    loading: Annotated[o.Loading, Only("context", *OF_BITS.names)],
    as_json: o.Json = False,
) -> None:
    """Print texts as vectors, in their order, as `assay embed` does."""
    from bench.fleet.shares import Embed
    from engine.shell.embed import MOST_OUTPUTS, show, texts_asked

    begun, texts = time.monotonic(), texts_asked(text, file, pooling)
    held = model_of(model, loading, outputs=MOST_OUTPUTS)
    job, shares = Embed(held, pooling, normalize), [*batched(texts, TEXTS)]
    tokens: list[int] = []

    def vectors() -> Iterator[Any]:
        with opened(asked, held.file) as machines, bar("texts", len(shares)) as advance:
            machines.agree(job, shares[0])
            for _, found in machines.deal(job, shares):
                advance()
                for count, vector in found:
                    tokens.append(count)
                    yield vector

    show(vectors(), pooling, as_json, lambda: (tokens, time.monotonic() - begun))


@command
def batch(
    asked: typer.Context,
    model: o.ModelName,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Prompts, a line of JSON each; - reads stdin.")
    ],
    *,
    out: Path = option(Path("batch.jsonl"), "Where answers go, a line of JSON each.", "-o"),
    template: str = o.TEMPLATE,
    parallel: int = option(8, "How many prompts run at once on a worker.", "-np"),
    as_json: o.Json = False,
    sampling: o.Sampling,
    loading: Annotated[o.Loading, Only("context", *OF_BITS.names)],
) -> None:
    """Answer many prompts; go on where an earlier go ended, as `assay batch` does.

    Each answer is the one that its prompt has alone; what has no seed is another text each time.
    """
    from bench.fleet.shares import Batch, Perplexity, Prompt
    from engine.chat_templates import named as template_named
    from engine.perplexity import Passage
    from engine.shell.jsonl import Answers, Questions
    from engine.shell.jsonl import opened as file_opened

    if parallel < 1 or sampling.nothing:
        raise typer.BadParameter("--parallel and --predict are whole numbers from 1 up")
    params = sampling.params()
    held = model_of(model, loading, sequences=parallel, sampling=params)
    job = Batch(held, template_named(template) if template else None)
    lines, total = file_opened(file)
    with lines, Answers(out, None if str(file) == "-" else file) as answers:
        before, answered = len(answers.ids), 0
        questions = Questions(lines, params, set(answers.ids))

        def prompts() -> Iterator[Prompt]:
            messages: list[Any] = []  # of the line that is read now
            for request in questions.requests(lambda said: messages.append(said) or []):  # type: ignore[func-returns-value]
                yield Prompt(request.id, request.prompt, request.params, *messages)
                messages.clear()

        with opened(asked, held.file) as machines, bar("prompts", total) as advance:
            machines.agree(Perplexity(held), [Passage([*range(1, 33)], 16)])
            for _, found in machines.deal(job, batched(prompts(), parallel)):
                for number, said in found:
                    advance()
                    if isinstance(said, str):
                        questions.fails(int(number), ValueError(said))
                    else:
                        answers.append(questions.ids.pop(number), said)
                        answered += 1
    for number, error in sorted(questions.failed.items()):
        print(f"{file}:{number}: {error}", file=sys.stderr, flush=True)
    if as_json:
        failed = [{"line": n, "error": error} for n, error in sorted(questions.failed.items())]
        result = {"file": str(out), "answered": answered, "before": before, "failed": failed}
        print(json.dumps(result))
    else:
        print(f"{out}: {answered} answers" + (f", and {before} from before" if before else ""))
    if questions.failed:
        raise ValueError(f"{file}: {len(questions.failed)} lines have no answer")


@command
def score(
    asked: typer.Context,
    model: o.ModelName,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A line of JSON for each pair.")],
    *,
    out: Path = option(Path("scores.jsonl"), "Where scores go, a line of JSON each.", "-o"),
    loading: Annotated[o.Loading, Only("context", *OF_BITS.names)],
    as_json: o.Json = False,
) -> None:
    """Score continuations behind their prompts, as `Engine.score` does.

    A line of FILE is {"prompt": "...", "continuation": "..."} and may have an "id", else its
    number. A line of OUT has "id", "token_ids", "logprobs" (natural logarithms), their sum
    "logprob" and "is_greedy"; lines come in the order of FILE.
    """
    from bench.fleet.shares import Scoring
    from bench.race.results import append_line
    from engine.aside import check

    ids, pairs = pairs_of(file)
    check(out, file)
    out.unlink(missing_ok=True)
    held = model_of(model, loading, outputs=256)
    job, shares, done = Scoring(held), [*batched(pairs, PAIRS)], 0
    with opened(asked, held.file) as machines, bar("pairs", len(shares)) as advance:
        machines.agree(job, shares[0])
        for _, found in machines.deal(job, shares):
            advance()
            for one in found:
                told = asdict(one) | {"logprob": one.cumulative_logprob}
                append_line(out, {"id": ids[done], **told})
                done += 1
    print(json.dumps({"file": str(out), "scored": done}) if as_json else f"{out}: {done} scores")


def pairs_of(file: Path) -> tuple[list[Any], list[tuple[str, str]]]:
    """Ids, and prompts with their continuations. ValueError names the first wrong line."""
    ids, pairs = [], []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            said = json.loads(line)
            if not isinstance(said, dict) or said.keys() - SCORED:
                raise ValueError(f"a line is an object with {', '.join(sorted(SCORED))}")
            prompt, then = said.get("prompt"), said.get("continuation")
            if not (isinstance(prompt, str) and isinstance(then, str) and then):
                raise ValueError("prompt and continuation are texts")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file}:{number}: {error}") from None
        ids.append(said.get("id", number))
        pairs.append((prompt, then))
    if not pairs:
        raise ValueError(f"{file}: there is no pair in it")
    return ids, pairs


def batched(found: Iterable[Any], most: int) -> Iterator[list[Any]]:
    """At most so many at a time, none of which is read before it is wanted."""
    coming = iter(found)
    return iter(lambda: [*islice(coming, most)], [])


@command
def certify(
    asked: typer.Context,
    op: str | None = option(None, "Kernels of this op only."),
    again: bool = option(False, "Try certified kernels anew."),
    out: Path = option(Path("fleet-certificates.jsonl"), "Where certificates go.", "-o"),
    as_json: o.Json = False,
) -> None:
    """Try kernels on every machine, and say which is proved, fast or refused where.

    A machine keeps its certificates; they come back, too, as lines of JSON with the machine's key
    and worker. The matrix has a column for each kind of machine. Proved: its trials were passed;
    fast: an engine there takes it first; refused: a trial failed. Exit 1 if any was refused.
    """
    from bench.fleet.matrix import Matrix
    from bench.fleet.trials import Certify
    from bench.race.results import append_line
    from engine.shell.certify import kernels_of

    kernels_of(op)
    matrix, job = Matrix(), Certify(op, again)
    with opened(asked) as machines:
        for machine, found in each(machines, job, "certifying"):
            matrix.add(found.about.machine, found.about.device, found.states)
            for certificate in found.certificates:
                append_line(out, told_of(machine) | {"certificate": asdict(certificate)})
    show_matrix(matrix, as_json)
    if any(row["refused"] for row in matrix.summary()):
        raise typer.Exit(1)


def each(machines: "Fleet", job: Any, name: str) -> "Iterator[tuple[Machine, Any]]":
    """What every machine finds for itself, behind a bar. ValueError if none finds anything."""
    none = True
    with bar(name, len({machine.place for machine in machines.machines.values()})) as advance:
        for machine, found in machines.everywhere(job, None):
            none = False
            advance()
            yield machine, found
    if none:
        raise ValueError("no machine has done it")


def told_of(machine: "Machine") -> dict[str, str]:
    """Where something comes from, for programs."""
    about = machine.about
    return {"machine": about.machine, "device": about.device, "worker": machine.name}


def show_matrix(matrix: Any, as_json: bool) -> None:
    from engine.shell.show import note, print_table

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


@command
def tune(
    asked: typer.Context,
    model: o.ModelName,
    threads: o.Threads = 0,
    seconds: float = option(30.0, "About how long to measure."),
    again: bool = option(False, "Measure anew what is known."),
    out: Path = option(Path("fleet-tunings.jsonl"), "Where tunings go.", "-o"),
    as_json: o.Json = False,
) -> None:
    """Measure what suits each machine at a model's sizes; it keeps it for later loads.

    Tunings come back as lines of JSON with the machine's key and worker.
    """
    from bench.fleet.trials import Tune
    from bench.race.results import append_line
    from engine.embedded import resolve
    from engine.shell.show import print_table

    if not seconds > 0:
        raise typer.BadParameter(f"--seconds is more than 0, got {seconds:g}")
    file, rows = named(resolve(model)), list[dict[str, Any]]()
    with opened(asked, file) as machines:
        for machine, found in each(machines, Tune(file, threads, seconds, again), "tuning"):
            for one in found:
                rows.append(told_of(machine) | {"tuning": asdict(one)})
                append_line(out, rows[-1])
    if as_json:
        print(json.dumps(rows))
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


@command
def bench(
    asked: typer.Context,
    model: o.ModelName,
    *,
    prompt: str = option("512", "As in assay bench.", "-p"),
    generate: str = option("128", "As in assay bench.", "-n"),
    threads: str = option("0", "As in assay bench.", "-t"),
    repeats: int = option(5, "At least so many.", "-r", "--repetitions"),
    seconds: float = option(10.0, "Go on so long while the median is not within 1%."),
    peers: str = option("none", "Who else runs, where installed."),
    results: Path | None = option(None, "The folder of stored runs."),
    as_json: o.Json = False,
) -> None:
    """Time a model on every machine, alone there, workers of one host in turns.

    Each machine's run is kept beside those measured here, with its conditions and limits, so that
    `bench.race.frames.load()` has all machines in one frame; `assay report` tells of any of them.
    """
    from bench.fleet.trials import Bench
    from bench.race.results import read, results_folder
    from engine.embedded import resolve

    folder, file = results or results_folder(), named(resolve(model))
    words = "-p", prompt, "-n", generate, "-t", threads, "-r", str(repeats)
    job = Bench(file, (*words, "--seconds", str(seconds), "--peers", peers))
    runs = []
    with opened(asked, file) as machines:
        for _, (name, data) in each(machines, job, "timing"):
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f"{name}.part"
            part.write_bytes(data)
            part.replace(folder / name)
            runs.append(read(folder / name))
    show_runs(runs, as_json)


def show_runs(runs: Sequence[Any], as_json: bool) -> None:
    from bench.race import frames
    from engine.shell.show import figures, print_table

    found = frames.measured(runs)
    found = found[found["samples"].map(len) > 0]
    columns = ["test", "device", "threads", "contender", "tokens_per_second", "share"]
    rows = found.sort_values(["test", "threads", "contender", "device"])[columns]
    if as_json:
        print(rows.to_json(orient="records"))
        return
    rates = figures("tokens/s", "of its limit")
    names: Sequence[Any] = ("test", "machine", *figures("threads"), "by", *rates)
    print_table(
        names,
        (
            (test, device, int(threads), by, f"{rate:,.2f}", f"{share:.0%}" if share else "")
            for _, test, device, threads, by, rate, share in rows.itertuples()
        ),
    )


@command
def conformance(
    asked: typer.Context,
    chosen: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Of conformance/; all by default.")
    ] = None,
    *,
    k: str = option("", "Tests that match, as pytest's -k.", "-k", metavar="EXPRESSION"),
    m: str = option("not exhaustive", "Tests with these marks, as pytest's -m.", "-m"),
    out: Path = option(Path("fleet-failures.jsonl"), "Where failures go.", "-o"),
    as_json: o.Json = False,
) -> None:
    """Deal out the suite's cases; tell what failed, where, and the command that shows it again.

    The share of a worker that dies is done again by another. Exit 1 if anything failed.
    """
    from bench.fleet import suite
    from bench.race.results import append_line

    words = [*(chosen or ["conformance"]), *(["-k", k] if k else []), *(["-m", m] if m else [])]
    tests = suite.cases(words)
    if not tests:
        raise ValueError("no test is of this kind")
    shares, told, failed = [*suite.shares(tests, CASES)], dict[str, int](), []
    with opened(asked) as machines, bar("shares of tests", len(shares)) as advance:
        for _, found in machines.deal(suite.run, shares):
            advance()
            for case in found:
                told[case.outcome] = told.get(case.outcome, 0) + 1
                if case.outcome in ("failed", "error"):
                    failed.append({**asdict(case), "replay": case.replay})
                    append_line(out, failed[-1])
                    if not as_json:
                        print(f"{case.outcome} {case.test}\n  again: {case.replay}", flush=True)
    if as_json:
        print(json.dumps({"tests": len(tests), "outcomes": told, "failures": failed}))
    else:
        counts = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(told.items()))
        print(f"{len(tests):,} tests: {counts}")
    if failed:
        raise typer.Exit(1)
