"""Reports as self-contained HTML pages: no network, no other files."""

from math import inf
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bench.report.cells import Cell
from bench.report.table import Report
from bench.report.words import plural
from kernels.foreign.report import Report as Judged


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


def attributes(cell: Cell, numeric: bool) -> Markup:
    """A cell's exact figure, note, tone and alignment, as attributes of its element."""
    words = Markup()
    if cell.value is not None:
        words += Markup(' data-value="{}"').format(cell.value)
    if cell.note:
        words += Markup(' title="{}"').format(cell.note)
    classes = [cell.tone] * bool(cell.tone) + ["number"] * (numeric and cell.value is None)
    if classes:
        words += Markup(' class="{}"').format(" ".join(classes))
    return words
