"""A table of a report on the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table as Printed

from bench.report.table import Table


def show(console: Console, title: str, table: Table, remarks: Sequence[str]) -> None:
    """Under its title, with lines behind it."""
    found = Printed(*table.columns, box=None)
    for column, numeric in zip(found.columns, table.numeric, strict=True):
        column.justify = "right" if numeric else "left"
    for row in table.rows:
        found.add_row(*(cell.text for cell in row))
    console.print(title, style="italic", highlight=False, soft_wrap=True)
    console.print(found)
    for line in remarks:
        console.print(line, highlight=False, soft_wrap=True)
    console.print()
