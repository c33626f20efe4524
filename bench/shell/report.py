"""assay report: a run as one page to look at, and as Markdown."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option


def report(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's name or file; the latest by default.")
    ] = "latest",
    results: Path | None = option(None, "The folder of stored runs."),
    output: Path = option(Path("assay-report.html"), "Output file of the page.", "-o"),
    markdown: Path | None = option(None, "Also write Markdown to this file.", metavar="FILE"),
    as_json: o.Json = False,
) -> None:
    """Write what a run measured as one HTML page.

    It has tables, plots, the history of runs and what is certified.
    """
    if find_spec("matplotlib") is None:
        raise RuntimeError("assay report needs matplotlib: pip install 'assay[dev]'")
    from bench.race.results import ResultsError, find, read_folder, results_folder
    from bench.report.certified import standings
    from bench.report.page import markdown as as_markdown
    from bench.report.page import page
    from bench.report.report import report as report_on
    from engine.atomic_write import atomic_write, check
    from engine.shell.terminal import note, progress_bar
    from kernels.planted import load_planted
    from kernels.tuning import current

    for path in filter(None, (output, markdown)):
        check(path)  # better now than after all the work
    folder = results or results_folder()
    chosen = find(run, folder)
    try:
        runs, complaints = read_folder(folder)
    except ResultsError:  # the run is a file from elsewhere, and alone
        runs, complaints = [], []
    if all(known.run != chosen.run for known in runs):
        runs.append(chosen)
    for complaint in complaints:
        note(complaint)
    with progress_bar() as bar:
        task = bar.add_task("drawing", total=None)
        made = report_on(
            chosen,
            runs,
            standings(),
            load_planted(),
            current(),
            lambda done, total: bar.update(task, total=total, completed=done),
        )
    texts = {output: page(made)} | ({markdown: as_markdown(made)} if markdown else {})
    written = list[dict[str, Any]]()
    for path, text in texts.items():
        with atomic_write(path) as file:
            written.append({"file": str(path), "bytes": file.write(text.encode())})
    if as_json:
        print(json.dumps({"run": chosen.run, "files": written}))
        return
    for row in written:
        print(f"{row['file']}: {row['bytes'] / 1e3:,.0f} kB")
