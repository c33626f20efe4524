"""Results as pandas frames.

>>> from bench import frames
>>> samples = frames.load()                 # one row a sample
>>> table = frames.summary(samples)         # one row a measurement: medians, rates, shares
>>> table[table.test == "linear"].sort_values("share")
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bench.results import Run, read_folder, results_folder

KEYS = (
    "run", "when", "commit", "device", "bench", "test", "contender", "target", "variant", "format",
    "shape", "model", "threads", "cache", "phase", "settings", "rivals",
)  # fmt: skip
FACTS = (
    "tokens", "bytes", "operations", "limit", "limit_seconds", "limit_spread", "kernel", "checked",
    "note", "unit",
)  # fmt: skip


def load(folder: Path | str | None = None) -> pd.DataFrame:
    """Every sample of every run in a results folder: one row each with its keys. `value` is in the
    row's `unit`; `seconds` is the same where that is "s".

    Files that cannot be read are left out; `attrs["complaints"]` has a line for each.
    """
    runs, complaints = read_folder(Path(folder) if folder else results_folder())
    frame = of(runs)
    frame.attrs["complaints"] = complaints
    return frame


def of(runs: Sequence[Run]) -> pd.DataFrame:
    """The samples of these runs; a measurement that is absent has one row without a value."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        about = {"run": run.run, "when": run.when}
        about |= {"commit": run.conditions.commit[:12], "device": run.conditions.device}
        for m in run.measurements:
            facts = about | {name: getattr(m, name) for name in KEYS[4:] + FACTS}
            for i, value in enumerate(m.samples or (float("nan"),)):
                rows.append(facts | {"sample": i, "value": value})
    frame = pd.DataFrame(rows, columns=[*KEYS, *FACTS, "sample", "value"])
    frame["seconds"] = frame["value"].where(frame["unit"] == "s")
    frame["when"] = pd.to_datetime(frame["when"])
    return frame


def summary(samples: pd.DataFrame) -> pd.DataFrame:
    """One row a measurement: `samples` (their number), `median`, `mean`, `sd`, `low` and `high`
    quartile in its `unit`, and the rates that its cost and tokens give at the median, if that is
    seconds."""
    keys, facts = list(KEYS), list(FACTS)
    values = samples.groupby(keys + facts, sort=False, dropna=False)["value"]
    table = values.agg(
        samples="count",
        median="median",
        mean="mean",
        sd="std",
        low=lambda s: s.quantile(0.25),
        high=lambda s: s.quantile(0.75),
    ).reset_index()
    median = table["median"].where(table["unit"] == "s")
    table["gb_per_second"] = table["bytes"] / median / 1e9
    table["gflop_per_second"] = table["operations"] / median / 1e9
    table["tokens_per_second"] = table["tokens"] / median
    table["share"] = (table["limit_seconds"] / median).where(table["limit_seconds"] > 0)
    return table
