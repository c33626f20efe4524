"""What a run holds, as the report's sections ask for it: frames of its measurements, a row each."""

import math
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from bench.contenders.contender import OURS
from bench.race import frames
from bench.race.ratio import Ratio, ratio
from bench.race.results import Run
from bench.report.cells import NONE, Cell

RATED = r"(?P<kind>pp|tg)(?P<amount>\d+)(?: @ d(?P<depth>\d+))?"  # an engine's prompt, generation
AMOUNTS = {"tokens/s": ("tokens", 1.0), "GFLOP/s": ("operations", 1e9), "GB/s": ("bytes", 1e9)}
_FORMAT = re.compile(r"(.+?)[-._]((?:iq|q)\d\w*|b?f16|f32)", re.IGNORECASE)
Measured = Any  # a row of such a frame


def rows_of(runs: Sequence[Run]) -> pd.DataFrame:
    """Of these runs all that machines can have given. `name` is a kernel's, as linear avx2 Q4_0;
    `size` its shape as people write it; a model goes by its file without the ending."""
    rows = frames.measured(runs)
    rows["name"] = [
        " ".join(filter(None, row)) for row in rows[["test", "variant", "format"]].values
    ]
    rows["size"] = rows["shape"].map(product)
    rows["model"] = rows["model"].str.removesuffix(".gguf")
    return rows[rows["impossible"] == ""]


def kind_of(run: Run) -> tuple[str, str]:
    """What machines of one kind have in common: the CPU's name, and kernels.provenance's key."""
    return run.conditions.device, run.conditions.machine


def present(rows: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """Those with samples whose fields have these values."""
    found = rows["median"].notna()
    for name, value in wanted.items():
        found &= rows[name] == value
    return rows[found]


def absences(rows: pd.DataFrame, bench: str) -> list[str]:
    """Who did not take part, and why, once for each reason."""
    absent = rows[(rows["bench"] == bench) & rows["median"].isna()]
    reasons = absent[["contender", "note"]].drop_duplicates()
    return [
        f"{one.contender} is absent: {one.note or 'no reason was noted'}."
        for one in reasons.itertuples()
    ]


def our_ops(rows: pd.DataFrame, phase: str = "run") -> pd.DataFrame:
    """Our kernels alone, in one phase."""
    return present(rows, bench="op", contender=OURS, phase=phase)


def largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Of each kernel the case that moves most bytes, cold before hot; most bytes first."""
    ordered = rows.assign(cold=rows["cache"] == "cold").sort_values(
        ["cold", "bytes"], ascending=False, kind="stable"
    )
    return ordered.drop_duplicates("name").sort_values("bytes", ascending=False, kind="stable")


def family(model: str) -> tuple[str, str]:
    """The model without its format, and the format: tinyllama-q4_0 is (tinyllama, Q4_0)."""
    found = _FORMAT.fullmatch(model)
    return (found[1], found[2].upper()) if found else (model, "")


def sizes(shape: str) -> dict[str, int]:
    """The shape's axes; nothing of a shape that is none, as a node's label."""
    pairs = [word.partition("=") for word in shape.split(",")]
    return {axis: int(size) for axis, _, size in pairs if size.isdigit()}


def settings(row: Measured) -> dict[str, str]:
    """What a row ran with, by name."""
    return dict(word.split("=", 1) for word in row.settings.split(",") if "=" in word)


def product(shape: str) -> str:
    """Of a product tokens × hidden → out, else the sizes by name."""
    s = sizes(shape)
    if list(s) == ["tokens", "hidden", "out"]:
        return f"{s['tokens']} × {s['hidden']} → {s['out']}"
    defaults = ("sequences=1", "windowed=0", "alibi=0", "softcapped=0")  # plain attention
    return " ".join(word for word in shape.split(",") if word not in defaults)


def unit_of(row: Measured) -> str:
    """What its speed is told in: a model's tokens, an op's bytes for one token, or operations."""
    if row.bench != "op":
        return "tokens/s"
    return "GFLOP/s" if sizes(row.shape).get("tokens", 1) > 1 and row.operations else "GB/s"


def done(row: Measured, unit: str) -> float:
    """How much of this unit a sample does."""
    amount, scale = AMOUNTS[unit]
    return float(getattr(row, amount) / scale)


def mark(row: Measured, amount: float) -> dict[str, float]:
    """How much of something a second: at the median, and the quartiles, as plots want it."""
    return {"value": amount / row.median, "low": amount / row.high, "high": amount / row.low}


def faster(row: Measured, other: Measured) -> Ratio:
    """How many times as fast a measurement is as another one."""
    return ratio(other.samples, row.samples, together=int(in_turns(row, other)))


def in_turns(row: Measured, other: Measured) -> bool:
    return bool(row.rivals) and row.rivals == other.rivals


def times(found: Ratio | None, form: str = ".2f") -> Cell:
    """E.g. 2.00 [1.95, 2.03]."""
    if not found:
        return NONE
    return Cell(f"{found.value:{form}} [{found.low:{form}}, {found.high:{form}}]", found.value)


def share(found: Ratio | None) -> Cell:
    """E.g. 91% [89%, 92%]."""
    return times(found, ".0%")


def faster_cell(row: Measured | None, other: Measured | None) -> Cell:
    """The same of two measurements; of those that took no turns it is marked."""
    if row is None or other is None or not row.samples or not other.samples:
        return NONE
    found = faster(row, other)
    tone = ("good" if found.value > 1 else "bad") if found.significant else ""
    if in_turns(row, other):
        return Cell(times(found).text, found.value, tone=tone)
    return Cell(times(found).text + " †", found.value, "not measured in turns", tone)


def duels(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each prompt (`kind` pp) and generation (tg) of so many tokens (`amount`) behind
    `depth`, by model and threads. `sides` has everyone's measurement by name, `ours` is ours if
    there is one.

    Generation comes first; the largest family first (the slowest at generating: it reads the most
    a token), its fastest format first.
    """
    rated = rows["test"].str.extract(f"^{RATED}$").fillna({"depth": "0"})
    engine = rows.join(rated)[rated["kind"].notna() & (rows["bench"] == "engine")]
    engine = engine.astype({"amount": int, "depth": int})
    groups = engine.groupby(["model", "test", "threads"], sort=False)
    found = groups[["kind", "amount", "depth"]].first().reset_index()
    found["sides"] = [{m.contender: m for m in part.itertuples()} for _, part in groups]
    found["fastest"] = [
        max((m.tokens_per_second for m in sides.values() if m.samples), default=0.0)
        for sides in found["sides"]
    ]
    ours = [sides.get(OURS) for sides in found["sides"]]
    found["ours"] = pd.Series([m if m and m.samples else None for m in ours], dtype=object)
    found["family"] = [family(model)[0] for model in found["model"]]
    paces = found[found["kind"] == "tg"].groupby("family")["fastest"].min()
    found["pace"] = found["family"].map(paces).fillna(math.inf)
    rising = {"kind": False, "pace": True, "fastest": False, "depth": True, "amount": False,
              "threads": False}  # fmt: skip
    return found.sort_values(list(rising), ascending=list(rising.values()), ignore_index=True)


def main_duels(found: pd.DataFrame) -> pd.DataFrame:
    """One test of each kind and model: after no tokens, the longest, on most threads."""
    plain = found[found["depth"] == 0]
    best = plain.sort_values(["threads", "amount"], ascending=False, kind="stable")
    return plain.loc[best.drop_duplicates(["model", "kind"]).index.sort_values()]
