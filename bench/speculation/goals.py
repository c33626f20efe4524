"""What drafts are to reach, and whether they did."""

from collections.abc import Iterator, Sequence

from bench.speculation import lookup, pair, synthetic, verifying
from bench.speculation.contest import Contest, Outcome
from bench.speculation.verifying import Verifying


def of_verifying(found: Verifying) -> Iterator[str]:
    tokens, goal = verifying.GOAL_TOKENS, verifying.GOAL
    if tokens in found.samples:
        low, middle, high = found.quartiles(tokens)
        yield (
            f"A step of {tokens} tokens costs {middle:.2f} of one of 1, quartiles"
            f" {low:.2f} and {high:.2f}; the goal is at most {goal:g}: {_said(middle <= goal)}."
        )


def of_contest(contest: Contest) -> Iterator[str]:
    match contest.kind:
        case synthetic.FORMULA:
            yield from _of_formula(contest)
        case pair.PAIR:
            best = max((o for o in contest.outcomes if o.base), key=lambda o: o.tokens_per_step)
            yield (
                f"Most tokens a step: {best.tokens_per_step:.2f} ({best.name}); the goal is at"
                f" least {pair.GOAL:g}: {_said(best.tokens_per_step >= pair.GOAL)}."
            )
        case lookup.LOOKUP:
            faster = contest.faster(contest.find(lookup.COPIED))
            assert faster
            yield (
                f"{faster.value:.2f} times as fast as plain; the goal is at least {lookup.GOAL:g}:"
                f" {_said(faster.value >= lookup.GOAL)}."
            )


def _of_formula(contest: Contest) -> Iterator[str]:
    """For each acceptance and cost, of the length that was fastest, as who drafts would choose."""
    drafted = [(o, o.drafts) for o in contest.outcomes if o.drafts]
    for alpha, c in dict.fromkeys((drafts.alpha, drafts.c) for _, drafts in drafted):
        alike = [o for o, drafts in drafted if (drafts.alpha, drafts.c) == (alpha, c)]
        best = fastest(contest, alike)
        reached = contest.reached(best)
        assert best.drafts
        assert reached
        yield (
            f"With alpha {alpha:g} and c {c:g} drafts of {best.drafts.gamma} are fastest:"
            f" {reached.value:.0%} of the formula; the goal is at least {synthetic.GOAL:.0%}:"
            f" {_said(reached.value >= synthetic.GOAL)}."
        )


def fastest(contest: Contest, outcomes: Sequence[Outcome]) -> Outcome:
    return max(outcomes, key=lambda o: faster.value if (faster := contest.faster(o)) else 0.0)


def _said(reached: bool) -> str:
    return "reached" if reached else "missed"
