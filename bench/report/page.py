"""Reports as self-contained HTML pages, which need no network and no other files, and as Markdown,
for a README or a pull request: their tables, the first rows of each."""

from datetime import date
from math import inf
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bench.machine.conditions import Conditions
from bench.report.cells import Cell
from bench.report.plots import standalone
from bench.report.table import Report, Section, Table
from bench.report.words import plural
from kernels.foreign.report import Report as Judged

LEFT_OUT = ("conformance", "planted")  # of Markdown: long, and of the machine, not of the run


def page(report: Report) -> str:
    """page.html with its style and script inlined."""
    return _filled("page.html", report=report)


def judged_page(report: Judged) -> str:
    """The page of a third-party kernel; everything that a candidate reports of itself is
    escaped."""
    return _filled("judged.html", r=report, inf=inf)


def _filled(name: str, **values: object) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"attributes": attributes, "svg": Markup, "plural": plural}
    return environment.get_template(name).render(values)


def attributes(cell: Cell, numeric: bool) -> dict[str, object]:
    """A cell's exact figure, note, tone and alignment, as its element has them; None for none."""
    classes = [cell.tone] * bool(cell.tone) + ["number"] * (numeric and cell.value is None)
    about = {"title": cell.note or None, "class": " ".join(classes) or None}
    return {"data-value": cell.value, **about}


def markdown(report: Report) -> str:
    """Title and facts, the headline's table, then the other sections."""
    lines = [f"# {report.title}", ""]
    lines += [f"- {name}: {_plain(value)}" for name, value in report.about]
    if report.warning:
        lines += ["", f"**{report.warning}**"]
    for section in report.sections:
        if section.tables and section.anchor not in LEFT_OUT:
            lines += ["", f"## {section.title}", "", *_section(section)]
    return "\n".join(lines) + "\n"


def write_page(section: Section, about: Conditions, out: Path) -> None:
    """A section as a page of its own: where and when it was measured, whether that is doubtful, and
    its plots as files beside it."""
    versions = ", ".join(f"{n} {v}" for n, v in about.versions.items() if n != "assay")
    lines = [
        f"# {section.title}",
        "",
        f"{about.device}, {date.today():%-d %B %Y}, commit {about.commit[:7] or 'unknown'};"
        f" {about.system}; {versions}.",
        *(["", f"**Measured on {about.busy}: doubtful.**"] if about.busy else []),
        "",
        *_section(section),
    ]
    for plot in section.plots:
        name = f"{out.stem}-{plot.anchor.removeprefix('plot-')}.svg"
        (out.parent / name).write_text(standalone(plot.wide))
        lines += ["", f"![{_plain(plot.caption)}]({name})"]
    out.write_text("\n".join(lines) + "\n")


def _section(section: Section) -> list[str]:
    lines = [_plain(section.lead)]
    for table in section.tables:
        lines += ["", f"{_plain(table.caption)}:", "", *table_lines(table)]
        if table.folded:
            lines += ["", f"The first {table.top} of {len(table.rows)} rows."]
    if section.notes:
        lines += ["", *(f"- {_plain(note)}" for note in section.notes)]
    return lines


def table_lines(table: Table) -> list[str]:
    """A table in GitHub's Markdown; figures are aligned to the right."""
    rows = table.rows[: table.top] if table.folded else table.rows
    rule = ["---:" if numeric else "---" for numeric in table.numeric]
    cells = [[_plain(cell.text) for cell in row] for row in rows]
    return [f"| {' | '.join(line)} |" for line in (map(_plain, table.columns), rule, *cells)]


def _plain(words: str) -> str:
    """Escape markup and cell separators."""
    for sign in ("\\", "|", "*", "<", "`", "]("):
        words = words.replace(sign, f"\\{sign}")
    return " ".join(words.split())
