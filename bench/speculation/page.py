"""The report on drafts, as Markdown with plots beside it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.conditions import Conditions
from bench.ratio import Ratio
from bench.report.heading import heading, share, times
from bench.report.markdown import table_lines
from bench.report.table import NONE, Row, Table, count, number, percent, text
from bench.speculation import goals
from bench.speculation.contest import Contest, Outcome
from bench.speculation.drawing import DRAWN
from bench.speculation.lookup import LOOKUP
from bench.speculation.pair import PAIR
from bench.speculation.sparse import SPARSE, UNION, Unions
from bench.speculation.synthetic import CURVE, FORMULA
from bench.speculation.verifying import VERIFY, Verifying

Part = Verifying | Contest | Unions

TITLES = {
    VERIFY: "steps of several tokens",
    FORMULA: "a synthetic drafter",
    CURVE: "a synthetic drafter, by acceptance",
    PAIR: "a draft model",
    LOOKUP: "prompt lookup where a passage is copied",
    SPARSE: "drafts where neurons are skipped",
    UNION: "neurons that a step's tokens need together",
}
LEAD = (
    "Ways to write take turns in one process; prompts are not timed. Medians, and ratios with their"
    " 95% bootstrap intervals, of verifying with quartiles. A synthetic drafter knows the text, is"
    " right about a token with probability alpha and spins for c steps of the target at each; for"
    " its drafts of gamma tokens the formula is (1 - alpha^(gamma + 1)) / (1 - alpha) /"
    " (gamma c + 1) (arXiv 2211.17192). `verifying` is the measured cost of a step of gamma + 1"
    " tokens, `with verifying` the formula with that in place of its last 1. Texts are the plain"
    " ones, token for token, but for drafts drawn by sampling, which lead to others of the same"
    " distribution."
)


def page(parts: Sequence[Part], about: Conditions, plots: Sequence[str]) -> str:
    """All of them; `plots` are the names of the drawings' files, in their order."""
    lines = [*heading("Speculative decoding", about), "", LEAD]
    names = iter(plots)
    for part in parts:
        lines += ["", f"## {title(part)}", "", *table_lines(table(part))]
        if part.kind in DRAWN:
            lines += ["", f"![{TITLES[part.kind]}]({next(names)})"]
        lines += ["", *(f"- {line}" for line in remarks(part))] if remarks(part) else []
    return "\n".join(lines) + "\n"


def title(part: Part) -> str:
    return f"{part.model}: {TITLES[part.kind]} ({part.threads} threads)"


def remarks(part: Part) -> list[str]:
    """What was to be reached, and what else is to be said."""
    match part:
        case Verifying():
            return [*goals.of_verifying(part), f"Behind a text of {part.depth} tokens."]
        case Contest():
            return [*goals.of_contest(part), *part.notes]
        case Unions():
            return []


def table(part: Part) -> Table:
    match part:
        case Verifying():
            columns: tuple[str, ...] = ("Tokens", "ms a step", "of a step of 1", "quartiles")
            rows = [_row_of_verifying(part, tokens) for tokens in part.samples]
        case Unions():
            columns = ("Tokens", "active", "if independent", "1 - (1 - s)^k")
            rows = [
                (count(u.tokens), percent(u.share), percent(u.independent), percent(u.alike))
                for u in part.found
            ]
        case Contest():
            columns = ("Way", "ms a token", "tokens a step", "times plain")
            rows = [_row(part, o) for o in part.outcomes]
            if any(o.drafts for o in part.outcomes):
                columns += ("formula", "of it", "verifying", "with verifying", "of that")
                rows = [
                    (*row, *_formula(part, o)) for row, o in zip(rows, part.outcomes, strict=True)
                ]
    return Table(part.kind, TITLES[part.kind], columns, tuple(rows), top=len(rows))


def _row_of_verifying(found: Verifying, tokens: int) -> Row:
    low, middle, high = found.quartiles(tokens)
    samples = sorted(found.samples[tokens])
    return (
        count(tokens),
        number(1e3 * samples[len(samples) // 2]),
        number(middle),
        text(f"{low:.2f} to {high:.2f}"),
    )


def _row(contest: Contest, o: Outcome) -> Row:
    return (
        text(o.name),
        number(1e3 * o.pace),
        number(o.tokens_per_step),
        times(contest.faster(o)),
    )


def _formula(contest: Contest, o: Outcome) -> Row:
    if not o.drafts:
        return (NONE,) * 5
    return (
        number(o.drafts.allowed),
        share(contest.reached(o)),
        number(o.drafts.verifying),
        number(o.drafts.verified),
        share(contest.reached(o, verified=True)),
    )


def as_dict(part: Part) -> dict[str, Any]:
    """For programs; seconds."""

    def told(found: Ratio | None) -> list[float] | None:
        return [found.value, found.low, found.high] if found else None

    found: dict[str, Any] = {"kind": part.kind, "model": part.model, "threads": part.threads}
    match part:
        case Verifying():
            found["depth"] = part.depth
            found["steps"] = [
                {"tokens": n, "quartiles": list(part.quartiles(n)), "samples": list(samples)}
                for n, samples in part.samples.items()
            ]
        case Unions():
            found["unions"] = [
                {
                    "tokens": u.tokens, "share": u.share, "independent": u.independent,
                    "alike": u.alike,
                }
                for u in part.found
            ]  # fmt: skip
        case Contest():
            found["ways"] = [
                {
                    "way": o.name, "samples": list(o.seconds), "checked": o.checked,
                    "tokens_per_step": o.tokens_per_step, "times_plain": told(part.faster(o)),
                    "formula": o.drafts.allowed if o.drafts else None,
                    "verifying": o.drafts.verifying if o.drafts else None,
                    "with_verifying": o.drafts.verified if o.drafts else None,
                    "of_formula": told(part.reached(o)),
                    "of_formula_with_verifying": told(part.reached(o, verified=True)),
                }
                for o in part.outcomes
            ]  # fmt: skip
    return found | {"remarks": remarks(part)}


def write(parts: Sequence[Part], about: Conditions, out: Path) -> None:
    """The page, and beside it a plot of each part that has one."""
    plots = []
    for part in parts:
        if part.kind in DRAWN:
            words = [out.stem, Path(part.model).stem, part.kind]
            name = "-".join(words).replace(".", "-") + ".svg"
            DRAWN[part.kind](part).savefig(out.parent / name)
            plots.append(name)
    out.write_text(page(parts, about, plots))
