"""Races of speculative decoding: drafts of every kind, and none. Each race gives rows."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.engine.profile import timed_step
from bench.race.experiment import Contender, Racing, timed
from bench.race.results import Measurement
from bench.speculation.writer import GREEDY, Held, Replay, Writer, chains, opening, texts, write
from engine import Engine, Linear, Options, PromptLookup, SamplingParams, Tree
from engine.model import Model
from engine.passes.count import count_neurons, neuron_counts
from engine.speculation import build
from engine.speculation.adaptive import expected_tokens
from engine.speculation.settings import Settings

BENCH = "speculation"
VERIFY, FORMULA, CURVE, PAIR, LOOKUP, SPARSE, UNION = (
    "verify", "formula", "curve", "pair", "lookup", "sparse", "union",
)  # fmt: skip
A_STEP = "a step"  # the phase of rows with tokens per step
PLAIN = "plain"  # suffixes of the names of ways that others are compared with

WARM, WARM_SEED = 0.8, 1
TEMPERATURE = replace(GREEDY, temperature=WARM, seed=WARM_SEED)
DRAWN = "drawn, by rejection"
ALWAYS_4 = Linear(4, draft_p_min=0, adaptive=False)
# How a draft model drafts: by default, always as many tokens, and a tree.
COLD_SETTINGS: Mapping[str, Settings] = {
    "chains": Linear(), "chains of 4": ALWAYS_4, "trees": Tree(),
}  # fmt: skip
WARM_SETTINGS: Mapping[str, Settings] = {
    "chains": Linear(),
    "chains of 4": ALWAYS_4,
    DRAWN: replace(ALWAYS_4, sampling=SamplingParams(temperature=WARM)),
}

COPIED, FIXED = "prompt lookup", "prompt lookup, always 10"
LOOKUPS: Mapping[str, Settings] = {
    COPIED: PromptLookup(), FIXED: PromptLookup(10, adaptive=False),
}  # fmt: skip
BEGUN = 4  # tokens of the copy that the prompt ends with

DENSE, SKIPPING, DRAFTS = "dense, plain", "sparse", "dense, drafts"
EACH, TOGETHER = "sparse, drafts, a mask a token", "sparse, drafts, one mask"
INDEPENDENT, ALIKE = "independent", "alike"
BATCHES = (1, 2, 3, 5, 9)


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Drafts of a synthetic drafter: `gamma` tokens at a time, each accepted with probability
    `alpha` and costing `c` steps of the target."""

    alpha: float
    gamma: int
    c: float

    @property
    def name(self) -> str:
        return f"alpha {self.alpha:g}, {self.gamma} tokens, c {self.c:g}"

    @classmethod
    def named(cls, name: str) -> "Synthetic | None":
        found = re.fullmatch(r"alpha (\S+), (\d+) tokens, c (\S+)", name)
        return cls(float(found[1]), int(found[2]), float(found[3])) if found else None

    def speedup(self, verifying: float = 1.0) -> float:
        """The speedup if every token is accepted with equal probability (arXiv 2211.17192): (1 -
        alpha^(gamma + 1)) / (1 - alpha) / (gamma c + 1).

        The 1 is the paper's: verifying costs a step of one token. `verifying` replaces it where the
        cost of a step of gamma + 1 tokens over one of 1 was measured.
        """
        tokens = float(expected_tokens([self.alpha] * self.gamma)[-1])
        return tokens / (self.gamma * self.c + verifying)


def raced(
    racing: Racing, kind: str, model: Model, ways: Mapping[str, Writer], told: str = ""
) -> list[Measurement]:
    """Rows of ways in turns, and of the tokens per step of each; each way first writes an uncounted
    stretch. `told` is common to all, in the form of settings."""
    for writer in ways.values():
        writer()
        writer.tokens = writer.steps = 0
    row = _row(kind, model, settings=told, tokens=1)
    entries = {name: Contender(replace(row, test=name), timed(w)) for name, w in ways.items()}
    rows = []
    for found in racing(kind, entries):
        writer = ways[found.test]
        rows.append(replace(found, checked=len(found.samples) if writer.expected else 0))
        given = (writer.tokens_per_step,)
        rows.append(replace(found, phase=A_STEP, unit="tokens", samples=given))
    return rows


def _row(kind: str, model: Model, **facts: object) -> Measurement:
    row = Measurement(BENCH, "", shape=kind, model=model.file.path.name)
    return replace(row, threads=model.team.n_threads, **facts)  # type: ignore[arg-type]


def verifying(
    racing: Racing, engine: Engine, text: Sequence[int], depth: int, counts: Sequence[int]
) -> list[Measurement]:
    """Steps of each of these numbers of tokens, with logits for all, after the first `depth` tokens
    of the text, which is at least as long as the largest step requires."""
    model = engine.model
    engine.reset()
    model.evaluate(text[:depth], 0)
    row = _row(f"{VERIFY} behind {depth}", model)
    steps = {
        str(n): Contender(
            replace(row, test=f"{n} token{'s' * (n > 1)}", tokens=n),
            timed(partial(timed_step, model, text[depth : depth + n], depth, range(n))),
        )
        for n in counts
    }
    rows = racing(VERIFY, steps, warm=True)
    engine.reset()
    return rows


def synthetic(
    racing: Racing,
    kind: str,
    engine: Engine,
    prompt: Sequence[int],
    length: int,
    drafts: Sequence[Synthetic],
) -> list[Measurement]:
    """The greedy text after a prompt, plain and with each kind of drafts; all texts are equal."""
    beyond = 2 * (1 + max(each.gamma for each in drafts))  # what the last drafts predict
    text = write(engine, prompt, GREEDY, length + beyond).tokens
    plain, *drafting = (
        Writer(engine, [prompt], GREEDY, length, expected=[text]) for _ in (None, *drafts)
    )
    ways = {PLAIN: plain}
    for each, writer in zip(drafts, drafting, strict=True):
        ways[each.name] = _replaying(writer, [*prompt, *text], each, plain)
    return raced(racing, kind, engine.model, ways)


def _replaying(writer: Writer, text: Sequence[int], drafts: Synthetic, plain: Writer) -> Writer:
    """The writer with such drafts of this text, whose cost is counted in the plain one's steps."""
    engine = writer.engine
    replay = Replay(text, engine.model.config.vocab, drafts.alpha, plain.steps_of(drafts.c))
    writer.speculation = chains(engine, replay, drafts.gamma)
    return writer


def pair(
    racing: Racing, engine: Engine, draft: Engine, prompts: Sequence[Sequence[int]], length: int
) -> list[Measurement]:
    """A draft model beside its target, greedy and at a temperature with a seed: texts after these
    prompts, plain and drafted; equal except for sampled drafts."""
    ways: dict[str, Writer] = {}
    for how, params, settings in (
        ("greedy", GREEDY, COLD_SETTINGS),
        (f"temperature {WARM:g}", TEMPERATURE, WARM_SETTINGS),
    ):
        ways[f"{how}, {PLAIN}"] = Writer(engine, prompts, params, length)
        beyond = 2 * (1 + max(each.draft_max for each in settings.values()))
        expected = texts(engine, prompts, params, length + beyond)
        for name, each in settings.items():
            drafting, same = build.make_speculation(each, engine, draft), name != DRAWN
            ways[f"{how}, {name}"] = Writer(
                engine, prompts, params, length, drafting, expected if same else None
            )
    return raced(racing, PAIR, engine.model, ways)


def lookup(
    racing: Racing, engine: Engine, passage: Sequence[int], length: int
) -> list[Measurement]:
    """Prompt lookup where a text is copied out of the prompt, as in quoting or editing: the prompt
    is a passage and the beginning of the same passage; the rest of it, `length` tokens and some
    more, is copied. The target is forced to that; `repeats` is how far it would go by itself."""
    prompt, copy = [*passage, *passage[:BEGUN]], passage[BEGUN:]
    (own,) = texts(engine, [prompt], GREEDY, length)
    alike = [a == b for a, b in zip(own[:length], copy, strict=False)]
    same = [*alike, False].index(False)
    params = replace(GREEDY, logits_processors=[Held([*prompt, *copy])])
    ways = {PLAIN: Writer(engine, [prompt], params, length)}
    for name, settings in LOOKUPS.items():
        drafting = build.make_speculation(settings, engine, None)
        ways[name] = Writer(engine, [prompt], params, length, drafting, expected=[copy])
    return raced(racing, LOOKUP, engine.model, ways, f"repeats={same}/{length}")


def sparse(
    racing: Racing, path: Path, options: Options, depth: int, length: int, drafts: Synthetic
) -> list[Measurement]:
    """Drafts for a sparse target, beside drafts and sparsity alone. All ways write one text after
    its first `depth` tokens, and are forced to it, since other masks would lead to other texts. The
    model is loaded three times."""
    with ExitStack() as stack:

        def load(sparse: str, union: bool = False) -> Engine:
            wanted = replace(options, sparse=sparse, union=union)
            return stack.enter_context(Engine.load(path, wanted))

        dense, each = load("off"), load("on")
        union = load("on", union=True)
        text = opening(dense, depth + length + 2 * (1 + drafts.gamma))
        params = replace(GREEDY, logits_processors=[Held(text)])

        def writer(engine: Engine) -> Writer:
            return Writer(engine, [text[:depth]], params, length, expected=[text[depth:]])

        def drafted(engine: Engine) -> Writer:
            own = writer(engine)
            return _replaying(own, text, drafts, own)

        ways = {
            DENSE: writer(dense),
            SKIPPING: writer(each),
            DRAFTS: drafted(dense),
            EACH: drafted(each),
            TOGETHER: drafted(union),
        }
        told = f"alpha={drafts.alpha:g},tokens={drafts.gamma},c={drafts.c:g}"
        return raced(racing, SPARSE, dense.model, ways, told)


def unions(path: Path, options: Options, count: int) -> Iterator[Measurement]:
    """Over a text of so many tokens, read in steps of one, of two and so on: the mean share of
    neurons that any token of a step needs; and what it would be if tokens needed neurons
    independently, with each neuron's own frequency or all alike."""
    options = replace(options, sparse="on", union=True, passes=(count_neurons,))
    with Engine.load(path, options) as engine:
        text = opening(engine, count)
        alone = _counts(engine, text, 1) / len(text)
        for tokens in BATCHES:
            read = len(text) // tokens * tokens
            row = _row(UNION, engine.model, test=f"union of {tokens}", tokens=tokens, unit="share")
            for phase, share in (
                ("run", _counts(engine, text[:read], tokens).mean() / read),
                (INDEPENDENT, (1 - (1 - alone) ** tokens).mean()),
                (ALIKE, 1 - (1 - alone.mean()) ** tokens),
            ):
                yield replace(row, phase=phase, samples=(float(share),))


def _counts(
    engine: Engine, text: Sequence[int], tokens: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For how many tokens each neuron of all blocks was active."""
    model = engine.model
    engine.reset()
    for counted in neuron_counts(model.memory).values():
        counted.clear()
    for first in range(0, len(text), tokens):
        part = text[first : first + tokens]
        model.step(part, range(first, first + len(part)), [(0,)] * len(part))
    engine.reset()
    return np.concatenate([counted.predicted for counted in neuron_counts(model.memory).values()])
