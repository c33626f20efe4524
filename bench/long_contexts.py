"""What a step behind a long text takes: with all of it, and with each policy, in turns.

`python -m bench.long_contexts MODEL --kv-policy quest:budget=2048 snapkv:capacity=1024` fills
caches with random keys and values as if a prompt had been read, since what they hold changes no
speed. It prints for each policy the bytes of keys and values, the ratio of a step's time without to
with it and, of Quest and DuoAttention, the share of a step that is neither in attention nor in what
is the same without.
"""

import argparse
import time
from contextlib import ExitStack
from functools import partial

import numpy as np

from bench.machine.clock import Stamped
from bench.race.ratio import ratio
from bench.race.timing import Rule, race
from engine.cache.pages import Pages
from engine.cache.streaming import Streaming
from engine.engine import Engine
from engine.graph import Node
from engine.model import Model
from engine.policies.table import policy_of
from reference.formats import FORMATS

OPS = ("page_extremes", "page_scores", "choose_pages")
APART = (".q", ".put", "_new")  # how labels end of what puts heads apart and together
ROWS = 1024  # that are drawn; the others repeat them
STAMPED = 30  # steps with a time stamp behind each call


def fill(model: Model, held: int) -> float:
    """Let sequence 0 hold a text; the seconds that a policy took to evict from it."""
    rng = np.random.default_rng(0)
    layout = FORMATS[model.options.kv_format]
    for cache in (*model.caches.values(), *model.pages.values()):
        assert isinstance(cache, np.ndarray)
        width = cache.shape[1] // layout.block_bytes * layout.block
        rows = layout.quantise(rng.standard_normal((ROWS, width), np.float32))
        cache[:] = np.resize(rows, cache.shape)
    cells = model.cells.place(range(held), [(0,)] * held)
    if isinstance(model.method, Streaming):  # as behind a session
        model.method.restore(cells, {})
    started = time.perf_counter()
    model.method.begin(0, held)
    model.method.finish(0)
    return time.perf_counter() - started


def step(model: Model, held: int) -> float:
    """Seconds of one token behind the text."""
    started = time.perf_counter()
    model.step([1], [held], [(0,)], [0])
    seconds = time.perf_counter() - started
    model.cells.remove(0, begin=held)
    return seconds


def bookkeeping(model: Model, held: int) -> float:
    """The share of a step in nodes that only a policy has, but for the attention over what it
    chose."""
    step(model, held)  # whose inputs are still in place
    plan, team = model.plan, model.team
    stamped = Stamped(plan.entries)
    bare = float(np.median([stamped.bare(team) for _ in range(STAMPED)]))
    laps = np.median([stamped.run(team) for _ in range(STAMPED)], axis=0) - bare
    own = [_is_bookkeeping(plan.steps[call.step].node) for call in plan.calls]
    return float(laps[own].sum() / laps.sum())


def _is_bookkeeping(node: Node) -> bool:
    joining = node.op == "add" and node.label.endswith(".attention")
    return node.op in OPS or joining or node.label.endswith((".attention_all", *APART))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.long_contexts", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--held", type=int, default=16384, help="tokens of the text (%(default)s)")
    parser.add_argument("--context", type=int, default=32768, help="cells (%(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--seconds", type=float, default=60, help="of the race (%(default)s)")
    parser.add_argument("--kv-policy", nargs="+", default=["quest:budget=2048"], metavar="POLICY")
    options = parser.parse_args()
    held, load = options.held, partial(
        Engine.load, options.model, context=options.context, threads=options.threads, batch=64,
        sequences=1,
    )  # fmt: skip
    with ExitStack() as engines:
        models = {"all": engines.enter_context(load()).model}
        for text in options.kv_policy:
            models[text] = engines.enter_context(load(kv_policy=policy_of(text))).model
        evicting = {name: fill(model, held) for name, model in models.items()}
        for model in models.values():
            step(model, held)
        runs = {name: partial(step, model, held) for name, model in models.items()}
        found = race(runs, Rule(least=9, error=0.005, cap_seconds=options.seconds))
        whole = found.pop("all")
        size = {name: f"{model.cache_bytes / 1e6:.1f} MB" for name, model in models.items()}
        print(f"behind {held} tokens, {size['all']}, a step takes {1e3 * np.median(whole):.1f} ms")
        for name, own in found.items():
            model = models[name]
            print(
                f"{name}: {1e3 * np.median(own):.1f} ms, {ratio(whole, own, together=3)} times as"
                f" fast; {size[name]}; to evict took {1e3 * evicting[name]:.0f} ms"
            )
            if isinstance(model.method, Pages | Streaming):
                print(f"  bookkeeping {bookkeeping(model, held):.1%} of a step")


if __name__ == "__main__":
    main()
