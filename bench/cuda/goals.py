"""What the kernels are meant to reach on a data centre's GPU, beside what was measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from bench.cuda.clock import Ceilings
from bench.cuda.measure import OURS, ROUNDING
from bench.race.results import Measurement, of_kind

Rows = Sequence[Measurement]
Figure = tuple[float, str] | str  # a figure with where it is from, or why there is none


@dataclass(frozen=True, slots=True)
class Goal:
    """`wanted` is what `figure(rows, ceilings)` should be at least, or at most if `below`."""

    what: str
    wanted: float
    figure: Callable[[Rows, Ceilings], Figure]
    unit: str = ""
    below: bool = False

    def line(self, rows: Rows, ceilings: Ceilings, predicted: Figure = "") -> str:
        """In words, beside what was predicted."""
        bound = f"{'<' if self.below else '>='} {self.shown(self.wanted)}"
        if not isinstance(predicted, str):
            bound += f", predicted {self.shown(predicted[0])}"
        found = self.figure(rows, ceilings)
        if isinstance(found, str):
            return f"{self.what}: unmeasured ({found}); goal {bound}"
        value, note = found
        met = value < self.wanted if self.below else value >= self.wanted
        verdict = "met" if met else "missed"
        return f"{self.what}: {self.shown(value)} ({note}); goal {bound}: {verdict}"

    def shown(self, value: float) -> str:
        return f"{value:,.0f} {self.unit}" if self.unit else f"{value:.1%}"


def best(rows: Rows, variant: str = "") -> list[Measurement]:
    """Of each size the fastest of our kernels, of this variant if one is given, activations being
    rounded already."""
    found: dict[str, Measurement] = {}
    for row in of_kind(rows, contender=OURS):
        if not row.samples or ROUNDING in row.settings or variant not in ("", row.variant):
            continue
        before = found.setdefault(row.shape, row)
        if row.median < before.median:
            found[row.shape] = row
    return list(found.values())


def of_limit(test: str, format: str, rows: Rows, ceilings: Ceilings, variant: str = "") -> Figure:
    """What the limit allows over what all sizes together take, and the same of each; by one
    `variant`, or at each size by the fastest."""
    wanted = of_kind(rows, test=test, format=format)
    found = best(wanted, variant)
    if missing := {row.shape for row in wanted} - {row.shape for row in found}:
        notes = [row.note for row in wanted if row.shape in missing and row.note]
        return notes[0] if notes else "no samples"
    if not found:
        return "not reached"
    limit = sum(row.limit_seconds for row in found)
    each = ", ".join(f"{row.share:.0%} at {row.shape} ({row.variant})" for row in found)
    return limit / sum(row.median for row in found), f"of the {found[0].limit}: {each}"


def of_peak(test: str, format: str, rows: Rows, ceilings: Ceilings, variant: str = "") -> Figure:
    """The same where multiplying is the limit."""
    if not ceilings.peak:
        return f"no matmul peak: {ceilings.lacks}"
    return of_limit(test, format, rows, ceilings, variant)


def tera(test: str, format: str, rows: Rows, ceilings: Ceilings, variant: str = "") -> Figure:
    """10^12 operations a second, of all sizes together."""
    found = best(of_kind(rows, test=test, format=format), variant)
    if not found:
        return "not reached"
    done = sum(row.operations for row in found) / sum(row.median for row in found)
    return done / 1e12, f"{len(found)} sizes"


def over_one(test: str, format: str, rows: Rows, ceilings: Ceilings) -> Figure:
    """How long a test's products of a few tokens take, over those of one at the same matrices."""

    def by_matrix(test: str) -> dict[str, float]:
        found = best(of_kind(rows, test=test, format=format))
        return {row.shape.partition(",")[2]: row.median for row in found}

    few, one = by_matrix(test), by_matrix("GEMV")
    if not few or few.keys() - one:
        return "not reached"
    return sum(few.values()) / sum(one[size] for size in few), f"{len(few)} sizes"


def decoding(model: str, format: str, rows: Rows) -> list[Measurement]:
    """The engine's step if it was measured, before its kernels alone."""
    found = of_kind(rows, model=model, format=format)
    return sorted((row for row in found if row.samples), key=lambda row: row.test != "engine")


def tokens_a_second(model: str, format: str, rows: Rows, ceilings: Ceilings) -> Figure:
    for row in decoding(model, format, rows):
        return 1 / row.median, f"{row.test}, {row.share:.0%} of the {row.limit}"
    return "not reached"


def of_bytes(model: str, format: str, rows: Rows, ceilings: Ceilings) -> Figure:
    for row in decoding(model, format, rows):
        return row.share, f"of the {row.limit}: {row.test}, {1 / row.median:,.0f} tokens/s"
    return "not reached"


def overhead(model: str, format: str, rows: Rows, ceilings: Ceilings) -> Figure:
    """As many empty kernels in a graph as a step has, over the step."""
    found = [row for row in decoding(model, format, rows) if "launches=" in row.settings]
    if not found:
        return "not reached"
    launched = int(found[0].settings.rpartition("launches=")[2])
    share = launched * ceilings.launch / found[0].median
    return share, f"of the step: {launched} launches of {ceilings.launch * 1e6:.2f} us in a graph"


GEMV = {"F16": 0.88, "Q8_0": 0.88, "Q4_0": 0.75, "Q4_K": 0.75}
TINY = "tinyllama-1.1b", "Q4_0"
STEPS = {"F16": 0.85, "Q4_0": 0.70}  # of Llama-2-7B
GOALS = (
    *(
        Goal(f"GEMV {kind} at the sizes of Llama-2-7B", wanted, partial(of_limit, "GEMV", kind))
        for kind, wanted in GEMV.items()
    ),
    *(
        Goal(f"8 tokens in {kind}, over one", 1.2, partial(over_one, "8 tokens", kind), below=True)
        for kind in GEMV
    ),
    Goal(
        "decoding at the shape of TinyLlama, Q4_0", 1600, partial(tokens_a_second, *TINY),
        unit="tokens/s",
    ),
    *(
        Goal(f"decoding at the shape of Llama-2-7B, {kind}", wanted,
             partial(of_bytes, "llama-2-7b", kind))
        for kind, wanted in STEPS.items()
    ),
    Goal(
        "prompts of 2,048 tokens, matrices of Llama-2-7B, F16", 200,
        partial(tera, "prefill", "F16", variant="tensor"), unit="TFLOP/s",
    ),
    Goal(
        "prompts in F16, fast", 0.65, partial(of_peak, "prefill", "F16", variant="bf16"),
    ),
    Goal("prompts in Q4_0", 250, partial(tera, "prefill", "Q4_0"), unit="TOPS"),
    Goal("attention of a token, 32,768 cells", 0.78, partial(of_limit, "flash decode", "F16")),
    Goal(
        "launches in a decoding step of TinyLlama, Q4_0", 0.15, partial(overhead, *TINY), below=True
    ),
)  # fmt: skip


def peers_lines(rows: Rows) -> list[str]:
    """Each race that had a peer: how many times as fast as it we were."""
    found = []
    for race in dict.fromkeys(row.rivals for row in rows if row.rivals):
        own = of_kind(rows, rivals=race)
        ours = best(own)
        others = [row for row in own if row.contender != OURS]
        words = [
            f"{row.contender} {median(row.samples) / ours[0].median:.2f}"
            if row.samples and ours
            else f"{row.contender} absent ({row.note})"
            for row in others
        ]
        if words:
            found.append(f"{own[0].test} {own[0].format} {own[0].shape}: " + ", ".join(words))
    return found
