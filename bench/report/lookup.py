"""What a run holds, as the report's sections ask for it."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.contenders.contender import OURS
from bench.ratio import Ratio, ratio
from bench.report.plots import Mark
from bench.results import Measurement, Run

BATCHED = re.compile(r"pp(\d+)\+tg(\d+) x(\d+)(?: (prompt|generation))?")
_RATED = re.compile(r"(pp|tg)(\d+)(?: @ d(\d+))?")
_FORMAT = re.compile(r"(.+?)[-._]((?:iq|q)\d\w*|b?f16|f32)", re.IGNORECASE)


def engine_model(name: str) -> str:
    """A model's file, without what every such file's name ends with."""
    return name.removesuffix(".gguf")


def family(model: str) -> tuple[str, str]:
    """The model without its format, and the format: tinyllama-q4_0 is (tinyllama, Q4_0)."""
    found = _FORMAT.fullmatch(model)
    return (found[1], found[2].upper()) if found else (model, "")


def possible(run: Run) -> Run:
    """Without the measurements that no machine can have given."""
    sound = tuple(m for m in run.measurements if not m.impossible)
    return replace(run, measurements=sound)


def present(ms: Iterable[Measurement]) -> list[Measurement]:
    """Those with samples."""
    return [m for m in ms if m.samples]


def mark(m: Measurement, amount: float) -> Mark:
    """How much of something a second: at the median, and the quartiles."""
    high, low = np.quantile(m.samples, (0.25, 0.75))
    return Mark(amount / m.median, amount / float(low), amount / float(high))


def speed(m: Measurement) -> Mark:
    """Tokens a second."""
    return mark(m, m.tokens)


def gflops(m: Measurement) -> float:
    return m.operations / m.median / 1e9


def gigabytes(m: Measurement) -> float:
    """A second."""
    return m.bytes / m.median / 1e9


def sizes(m: Measurement) -> dict[str, int]:
    """The shape's axes; nothing of a shape that is none, as a node's label."""
    pairs = [word.partition("=") for word in m.shape.split(",")]
    return {axis: int(size) for axis, _, size in pairs if size.isdigit()}


@dataclass(frozen=True, slots=True)
class Rated:
    """An engine's test of one kind: pp or tg, of so many tokens, after so many."""

    kind: str
    tokens: int
    depth: int

    @classmethod
    def of(cls, m: Measurement) -> "Rated | None":
        found = _RATED.fullmatch(m.test) if m.bench == "engine" else None
        return cls(found[1], int(found[2]), int(found[3] or 0)) if found else None


@dataclass(frozen=True, slots=True)
class Duel:
    """One test of one model by everyone who took part, and by those who are absent."""

    model: str
    test: str
    rated: Rated
    threads: int
    sides: dict[str, Measurement]

    @property
    def ours(self) -> Measurement | None:
        found = self.sides.get(OURS)
        return found if found and found.samples else None

    def against(self, peer: str) -> Ratio | None:
        """Our speed over the peer's, where both have samples."""
        other = self.sides.get(peer)
        if not self.ours or not other or not other.samples:
            return None
        turns = bool(other.rivals) and other.rivals == self.ours.rivals
        return ratio(other.samples, self.ours.samples, together=int(turns))


def duels(run: Run) -> list[Duel]:
    """All pp and tg tests, generation first; the largest family first (the slowest at generating:
    it reads the most a token), its fastest format first."""
    found: dict[tuple[str, str, int], Duel] = {}
    for m in run.measurements:
        rated = Rated.of(m)
        if rated:
            model = engine_model(m.model)
            duel = Duel(model, m.test, rated, m.threads, {})
            found.setdefault((model, m.test, m.threads), duel).sides[m.contender] = m
    paces: dict[str, float] = {}  # of a family's generation, the slowest
    for duel in found.values():
        if duel.rated.kind == "tg":
            name = family(duel.model)[0]
            paces[name] = min(paces.get(name, math.inf), _fastest(duel))
    return sorted(
        found.values(),
        key=lambda d: (
            d.rated.kind != "tg", paces.get(family(d.model)[0], math.inf), -_fastest(d),
            d.rated.depth, -d.rated.tokens, -d.threads,
        ),
    )  # fmt: skip


def _fastest(duel: Duel) -> float:
    sides = [m for m in duel.sides.values() if m.samples]
    return max((speed(m).value for m in sides), default=0.0)


def main_duels(found: Sequence[Duel]) -> list[Duel]:
    """One test of each kind and model: after no tokens, the longest, on most threads."""
    best: dict[tuple[str, str], Duel] = {}
    for duel in found:
        key = (duel.model, duel.rated.kind)
        known = best.get(key)
        if duel.rated.depth == 0 and (known is None or _weight(duel) > _weight(known)):
            best[key] = duel
    return list(best.values())


def _weight(duel: Duel) -> tuple[int, int]:
    return duel.threads, duel.rated.tokens


def peers(ms: Iterable[Measurement]) -> list[str]:
    """Everyone but us, in order of appearance."""
    return list(dict.fromkeys(m.contender for m in ms if m.contender != OURS))


def ops(run: Run, phase: str = "run") -> list[Measurement]:
    """Our kernels alone, in one phase."""
    mine = [m for m in run.measurements if m.bench == "op" and m.contender == OURS]
    return [m for m in present(mine) if m.phase == phase]


def kernel(m: Measurement) -> str:
    """linear avx512_vnni Q4_0."""
    return " ".join(filter(None, (m.test, m.variant, m.format)))


def largest(ms: Iterable[Measurement]) -> list[Measurement]:
    """Of each kernel the case that moves most bytes, cold before hot; most bytes first."""
    best: dict[str, Measurement] = {}
    for m in ms:
        known = best.get(kernel(m))
        if known is None or (m.cache == "cold", m.bytes) > (known.cache == "cold", known.bytes):
            best[kernel(m)] = m
    return sorted(best.values(), key=lambda m: -m.bytes)


def shape(m: Measurement) -> str:
    """Of a product tokens × hidden → out, else the sizes by name."""
    s = sizes(m)
    if list(s) == ["tokens", "hidden", "out"]:
        return f"{s['tokens']} × {s['hidden']} → {s['out']}"
    defaults = ("sequences=1", "windowed=0", "alibi=0", "softcapped=0")  # plain attention
    return " ".join(word for word in m.shape.split(",") if word not in defaults)
