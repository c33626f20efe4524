"""A draft model beside its target: greedy, and at a temperature with a seed."""

from collections.abc import Callable, Mapping, Sequence

from bench.speculation.contest import Contest, Way, contest
from bench.speculation.writer import GREEDY, Writer, texts
from bench.timing import Rule
from engine import Engine, Linear, SamplingParams, Tree
from engine.speculation import build
from engine.speculation.settings import Settings
from engine.speculation.speculate import Speculation

PAIR = "pair"
GOAL = 1.5  # tokens a step of the target
WARM = 0.8
TEMPERATURE = SamplingParams(
    temperature=WARM, seed=1, max_tokens=None, ignore_eos=True, detokenize=False
)
DRAWN = "drawn, by rejection"
# How a draft model drafts: as it does if nothing is said, always as many tokens, and a tree.
SETTINGS: Mapping[str, Settings] = {
    "chains": Linear(),
    "chains of 4": Linear(4, draft_p_min=0, adaptive=False),
    "trees": Tree(),
}
WARM_SETTINGS: Mapping[str, Settings] = {
    "chains": Linear(),
    "chains of 4": Linear(4, draft_p_min=0, adaptive=False),
    DRAWN: Linear(4, draft_p_min=0, adaptive=False, sampling=SamplingParams(temperature=WARM)),
}


def pair(
    engine: Engine,
    draft: Engine,
    prompts: Sequence[Sequence[int]],
    length: int,
    rule: Rule,
    watch: Callable[[int], None],
) -> Contest:
    """Texts behind these prompts, one after the other, plain and drafted; but for those of drawn
    drafts they are equal."""
    ways: dict[str, Way] = {}
    for how, params, settings in (
        ("greedy", GREEDY, SETTINGS),
        (f"temperature {WARM:g}", TEMPERATURE, WARM_SETTINGS),
    ):
        plain = f"{how}, plain"
        ways[plain] = Way(Writer(engine, prompts, params, length))
        beyond = 2 * (1 + max(each.draft_max for each in settings.values()))
        expected = texts(engine, prompts, params, length + beyond)
        for name, each in settings.items():
            speculation: Speculation = build.speculation(each, engine, draft)
            writer = Writer(
                engine, prompts, params, length, speculation, None if name == DRAWN else expected
            )
            ways[f"{how}, {name}"] = Way(writer, plain)
    return contest(PAIR, engine.model, ways, rule, watch)
