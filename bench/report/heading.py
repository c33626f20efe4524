"""What the pages of single tools have in common: how they begin, and ratios in their tables."""

from datetime import date

from bench.conditions import Conditions
from bench.ratio import Ratio
from bench.report.table import NONE, Cell


def heading(title: str, about: Conditions) -> list[str]:
    """The title, where and when it was measured, and whether that is doubtful."""
    versions = ", ".join(f"{n} {v}" for n, v in about.versions.items() if n != "assay")
    return [
        f"# {title}",
        "",
        f"{about.device}, {date.today():%-d %B %Y}, commit {about.commit[:7] or 'unknown'};"
        f" {about.system}; {versions}.",
        *(["", f"**Measured on {about.busy}: doubtful.**"] if about.busy else []),
    ]


def times(found: Ratio | None) -> Cell:
    """E.g. 2.00 [1.95, 2.03]."""
    if not found:
        return NONE
    return Cell(f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]", found.value)


def share(found: Ratio | None) -> Cell:
    """E.g. 91% [89%, 92%]."""
    if not found:
        return NONE
    return Cell(f"{found.value:.0%} [{found.low:.0%}, {found.high:.0%}]", found.value)
