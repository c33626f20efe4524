"""A synthetic drafter, of an acceptance and a cost that are set, beside the formula."""

from collections.abc import Callable, Sequence
from itertools import product

from bench.speculation.contest import Contest, Synthetic, Way, contest
from bench.speculation.replay import Replay
from bench.speculation.verifying import Verifying
from bench.speculation.writer import GREEDY, Writer, chains, write
from bench.timing import Rule
from engine import Engine

FORMULA, CURVE = "formula", "curve"
PLAIN = "plain"
ALPHAS, GOAL = (0.6, 0.8, 0.9), 0.85
COSTS = (0.0, 0.1)
GAMMAS = (2, 4, 8)
CURVE_ALPHAS = tuple(i / 10 for i in range(11))
CURVE_GAMMA = 4


def synthetic(
    kind: str,
    engine: Engine,
    prompt: Sequence[int],
    length: int,
    drafts: Sequence[Synthetic],
    rule: Rule,
    watch: Callable[[int], None],
) -> Contest:
    """The greedy text behind a prompt, plain and with each kind of drafts; all texts are equal."""
    beyond = 2 * (1 + max(each.gamma for each in drafts))  # what last drafts foretell
    text = write(engine, prompt, GREEDY, length + beyond).tokens

    def writer() -> Writer:
        return Writer(engine, [prompt], GREEDY, length, expected=[text])

    plain = writer()
    ways = {PLAIN: Way(plain)}
    for each in drafts:
        replay = Replay(
            [*prompt, *text], engine.model.config.vocab, each.alpha, plain.steps_of(each.c)
        )
        drafted = writer()
        drafted.speculation = chains(engine, replay, each.gamma)
        ways[each.name] = Way(drafted, PLAIN, each)
    return contest(kind, engine.model, ways, rule, watch)


def drafts(
    alphas: Sequence[float], gammas: Sequence[int], costs: Sequence[float], cost: Verifying
) -> list[Synthetic]:
    """All that can be made of these."""
    return [
        Synthetic(alpha, gamma, c, cost.cost(gamma + 1))
        for alpha, c, gamma in product(alphas, costs, gammas)
    ]
