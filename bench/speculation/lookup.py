"""Prompt lookup where a text is copied out of the prompt, as in quoting, editing or summing up."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.speculation.contest import Contest, Way, contest
from bench.speculation.texts import Held
from bench.speculation.writer import GREEDY, Writer, texts
from bench.timing import Rule
from engine import Engine, PromptLookup
from engine.speculation import build

LOOKUP = "lookup"
PLAIN, COPIED, FIXED = "plain", "prompt lookup", "prompt lookup, always 10"
BEGUN = 4  # tokens of the copy that the prompt ends with
GOAL = 2.0
SETTINGS = {COPIED: PromptLookup(), FIXED: PromptLookup(10, adaptive=False)}


def lookup(
    engine: Engine,
    passage: Sequence[int],
    length: int,
    rule: Rule,
    watch: Callable[[int], None],
) -> Contest:
    """The prompt is a passage and the beginning of the same passage; the rest of it, `length`
    tokens and some more, is copied."""
    prompt = [*passage, *passage[:BEGUN]]
    copy = passage[BEGUN:]
    (own,) = texts(engine, [prompt], GREEDY, length)
    same = next(
        (i for i, (a, b) in enumerate(zip(own[:length], copy, strict=False)) if a != b), length
    )
    params = replace(GREEDY, logits_processors=[Held([*prompt, *copy])])
    ways = {PLAIN: Way(Writer(engine, [prompt], params, length))}
    for name, settings in SETTINGS.items():
        found = build.speculation(settings, engine, None)
        ways[name] = Way(Writer(engine, [prompt], params, length, found, expected=[copy]), PLAIN)
    held = f"the target is held to the passage; by itself it repeats {same} of {length} tokens"
    return contest(LOOKUP, engine.model, ways, rule, watch, [held])
