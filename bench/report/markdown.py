"""The report as Markdown, for a README or a pull request: its tables, the first rows of each."""

from bench.report.table import Cell, Report, Section, Table

LEFT_OUT = ("conformance", "planted")  # long, and of the machine rather than of the run


def markdown(report: Report) -> str:
    """Title and facts, the headline's table, then the other sections."""
    lines = [f"# {report.title}", ""]
    lines += [f"- {name}: {_plain(value)}" for name, value in report.about]
    if report.warning:
        lines += ["", f"**{report.warning}**"]
    for section in report.sections:
        if section.tables and section.anchor not in LEFT_OUT:
            lines += ["", *_section(section)]
    return "\n".join(lines) + "\n"


def _section(section: Section) -> list[str]:
    lines = [f"## {section.title}", "", _plain(section.lead)]
    for table in section.tables:
        lines += ["", f"{_plain(table.caption)}:", "", *table_lines(table)]
        if table.folded:
            lines += ["", f"The first {table.top} of {len(table.rows)} rows."]
    if section.notes:
        lines += ["", *(f"- {_plain(note)}" for note in section.notes)]
    return lines


def table_lines(table: Table) -> list[str]:
    """GitHub's kind of table; figures stand to the right."""
    rows = table.rows[: table.top] if table.folded else table.rows
    rule = ["---:" if numeric else "---" for numeric in table.numeric]
    return [
        _line([_plain(name) for name in table.columns]),
        _line(rule),
        *(_line([_cell(cell) for cell in row]) for row in rows),
    ]


def _line(words: list[str]) -> str:
    return f"| {' | '.join(words)} |"


def _cell(cell: Cell) -> str:
    return _plain(cell.text)


def _plain(words: str) -> str:
    """Nothing in it is markup, or ends a cell."""
    for sign in ("\\", "|", "*", "<", "`", "]("):
        words = words.replace(sign, f"\\{sign}")
    return " ".join(words.split())
