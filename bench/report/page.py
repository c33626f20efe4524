"""The report as one HTML page that needs nothing else: no network, no other file."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bench.report.table import Cell, Report, plural

FOLDER = Path(__file__).parent


def page(report: Report) -> str:
    """page.html with its style and script within."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"attributes": attributes, "svg": Markup, "plural": plural}
    return environment.get_template("page.html").render(report=report)


def attributes(cell: Cell, numeric: bool) -> Markup:
    """A cell's exact figure, its remark, its tone and its side, as attributes of its element."""
    words = Markup()
    if cell.value is not None:
        words += Markup(' data-value="{!r}"').format(cell.value)
    if cell.note:
        words += Markup(' title="{}"').format(cell.note)
    classes = [cell.tone] * bool(cell.tone) + ["number"] * (numeric and cell.value is None)
    if classes:
        words += Markup(' class="{}"').format(" ".join(classes))
    return words
