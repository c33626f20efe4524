"""A report on somebody's kernel as one page, which a telephone shows as well."""

from math import inf
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kernels.foreign.report import Report


def page(report: Report) -> str:
    """judged.html, filled in; everything that a candidate said of itself is escaped."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("judged.html").render(r=report, inf=inf)
