"""Results as pandas frames.

>>> from bench.race import frames
>>> samples = frames.load()                 # one row a sample
>>> table = frames.summary(samples)         # one row a measurement: medians, rates, shares
>>> table[table.test == "linear"].sort_values("share")
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.race.results import Run, read_folder, results_folder

KEYS = (
    "run", "when", "commit", "device", "machine", "bench", "test", "contender", "target", "variant",
    "format", "shape", "model", "threads", "cache", "phase", "settings", "rivals",
)  # fmt: skip
FACTS = (
    "tokens", "bytes", "operations", "limit", "limit_seconds", "limit_spread", "kernel", "checked",
    "note", "unit",
)  # fmt: skip
MADE = ("samples", "median", "error", "share", "reached", "impossible", "title", "key")
RATES = {
    "gb_per_second": "bytes", "gflop_per_second": "operations", "tokens_per_second": "tokens",
}  # fmt: skip
UNITS = {"gb_per_second": 1e9, "gflop_per_second": 1e9, "tokens_per_second": 1.0}


def load(folder: Path | str | None = None) -> pd.DataFrame:
    """Every sample of every run in a results folder: one row each with its keys. `value` is in the
    row's `unit`; `seconds` is the same where that is "s".

    Unreadable files are left out; `attrs["complaints"]` has a line for each.
    """
    runs, complaints = read_folder(Path(folder) if folder else results_folder())
    frame = of(runs)
    frame.attrs["complaints"] = complaints
    return frame


def measured(runs: Sequence[Run]) -> pd.DataFrame:
    """One row for each measurement of these runs: its fields, all of its `samples`, their median,
    quartiles and error; the share of the limit; rates, NaN where there are none."""
    rows: list[dict[str, Any]] = []
    for run in runs:
        about = {"run": run.run, "when": run.when}
        about |= {"commit": run.conditions.commit[:12], "device": run.conditions.device}
        about["machine"] = run.conditions.machine
        for m in run.measurements:
            facts = {name: getattr(m, name) for name in (*KEYS[5:], *FACTS, *MADE)}
            rows.append(about | facts)
    frame = pd.DataFrame(rows, columns=[*KEYS, *FACTS, *MADE])
    quartiles = [np.quantile(s or (np.nan,), (0.25, 0.75)) for s in frame["samples"]]
    frame[["low", "high"]] = np.reshape(quartiles, (len(frame), 2))
    for rate, amount in RATES.items():
        frame[rate] = (frame[amount] / UNITS[rate] / frame["median"]).where(frame[amount] > 0)
    return frame


def of(runs: Sequence[Run]) -> pd.DataFrame:
    """The samples of these runs; an absent measurement has one row without a value."""
    rows = measured(runs)[[*KEYS, *FACTS, "samples"]]
    rows["sample"] = [list(range(len(s))) or [0] for s in rows["samples"]]
    rows["value"] = [list(s) or [np.nan] for s in rows["samples"]]
    frame = rows.drop(columns="samples").explode(["sample", "value"], ignore_index=True)
    frame = frame.astype({"sample": int, "value": float})
    frame["seconds"] = frame["value"].where(frame["unit"] == "s")
    frame["when"] = pd.to_datetime(frame["when"])
    return frame


def summary(samples: pd.DataFrame) -> pd.DataFrame:
    """One row a measurement: `samples` (their number), `median`, `mean`, `sd`, `low` and `high`
    quartile in its `unit`, and the rates that its cost and tokens give at the median, if that is
    seconds."""
    keys, facts = list(KEYS), list(FACTS)
    values = samples.groupby(keys + facts, sort=False, dropna=False)["value"]
    table = values.agg(samples="count", median="median", mean="mean", sd="std")
    for name, share in (("low", 0.25), ("high", 0.75)):
        table[name] = values.quantile(share)
    table = table.reset_index()
    median = table["median"].where(table["unit"] == "s")
    for rate, amount in RATES.items():
        table[rate] = table[amount] / UNITS[rate] / median
    table["share"] = (table["limit_seconds"] / median).where(table["limit_seconds"] > 0)
    return table
