"""assay report: a run as one page to look at, and as Markdown."""

import errno
import json
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.shell import options as o


def report(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's name or file; the latest by default.")
    ] = "latest",
    results: Annotated[
        Path | None, typer.Option("--results", help="The folder in which runs are kept.")
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where the page goes.")] = Path(
        "assay-report.html"
    ),
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE", help="Write Markdown there, too.")
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Write what a run measured as one HTML page.

    It has tables, plots, the history of runs and what is certified.
    """
    if find_spec("matplotlib") is None:
        raise RuntimeError("assay report needs matplotlib: pip install 'assay[dev]'")
    from bench.report.certified import standings
    from bench.report.markdown import markdown as as_markdown
    from bench.report.page import page
    from bench.report.report import report as report_on
    from bench.results import ResultsError, find, read_folder, results_folder
    from engine.shell.show import progress_bar, stderr
    from kernels.planted import load_planted
    from kernels.tuning import current

    for path in filter(None, (output, markdown)):
        if not path.parent.is_dir():  # better now than after all the work
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    folder = results or results_folder()
    chosen = find(run, folder)
    try:
        runs, complaints = read_folder(folder)
    except ResultsError:  # the run is a file from elsewhere, and alone
        runs, complaints = [], []
    if all(known.run != chosen.run for known in runs):
        runs.append(chosen)
    for complaint in complaints:
        stderr.print(f"note: {complaint}", style="yellow", highlight=False, soft_wrap=True)
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
    written = [write(output, page(made))]
    if markdown:
        written.append(write(markdown, as_markdown(made)))
    if as_json:
        print(json.dumps({"run": chosen.run, "files": written}))
        return
    for row in written:
        print(f"{row['file']}: {row['bytes'] / 1e3:,.0f} kB")


def write(path: Path, text: str) -> dict[str, Any]:
    """All of it or nothing: written beside the file and renamed; where it is, and its bytes."""
    try:
        descriptor, aside = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
            Path(aside).chmod(0o644)
            Path(aside).replace(path)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
    except OSError as error:  # of which the file aside is no concern
        raise OSError(error.errno, error.strerror, str(path)) from None
    return {"file": str(path), "bytes": len(text.encode())}
