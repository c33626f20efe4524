"""The section on models under a memory budget."""

from typing import Any

import numpy as np
import pandas as pd

from bench.offload import race
from bench.offload import way as ways
from bench.race.ratio import Ratio, ratio
from bench.report.cells import Column, number, percent, text
from bench.report.lookup import settings, share, times
from bench.report.plots import panels
from bench.report.table import Plot, Section, Table, table
from bench.report.words import plural

DISKS = {ways.IN_A_ROW: "in a row", ways.SCATTERED: "a neuron at a time"}
BESIDE = (ways.NAIVE, ways.OVERLAPPED, ways.LLAMA_CPP)
TOGETHER = 3  # rounds that are resampled together
TITLE = "Models within a memory budget"
LEAD = (
    "Steps of one token, all ways of a table in turns, each in a process of its own; medians, and"
    " ratios with their 95% bootstrap intervals. Naive reads the whole model past the page cache"
    " for each token and then computes; overlapped does both at once. A ratio above 1 means fewer"
    " milliseconds than that. Bytes are those that came from disk, GB/s are of the time in which"
    " any were read, and “of the disk” is beside reading the same file in a row, by the same"
    " readers, in turns."
)


def section(rows: pd.DataFrame) -> Section:
    """A table for each race with its ways, and the disk's rate below it; a plot for each curve."""
    tables, plots, notes = list[Table](), list[Plot](), list[str]()
    for i, (_, part) in enumerate(rows[rows["bench"] == race.BENCH].groupby("rivals", sort=False)):
        raced = Race(part)
        tables.append(raced.table(f"offload-{i}"))
        plots += raced.plot(f"plot-offload-{i}") if raced.kind.startswith(ways.CURVE) else []
        notes += raced.notes()
    return Section("offload", TITLE, LEAD, plots, tables, tuple(notes))


class Race:
    """The rows of ways that took turns."""

    def __init__(self, rows: pd.DataFrame) -> None:
        first = rows.iloc[0]
        self.kind, self.name = first["shape"], f"{first['model']}: {first['shape']}"
        self._threads = int(first["threads"])
        self.ways = rows[(rows["phase"] == "run") & ~rows["test"].isin(list(DISKS))]
        self._parts = {(row.test, row.phase): np.array(row.samples) for row in rows.itertuples()}
        for row in rows[rows["bytes"] > 0].itertuples():  # all that earlier runs say of them
            self._parts.setdefault((row.test, race.BYTES), np.full(len(row.samples), row.bytes))

    def samples(self, way: str, part: str = "run") -> np.ndarray[Any, Any]:
        """Samples of a way's token, none where it has no such part."""
        return self._parts.get((way, part), np.array([]))

    def median(self, way: str, part: str = "run") -> float:
        found = self.samples(way, part)
        return float(np.median(found)) if len(found) else np.nan

    def faster(self, way: str, than: str) -> Ratio | None:
        """How many times as fast a way is as another."""
        other, own = self.samples(than), self.samples(way)
        if way == than or not len(other) or not len(own):
            return None
        return ratio(other, own, together=TOGETHER)

    def of_disk(self, way: str, part: str) -> Ratio | None:
        """Bytes a second, over the whole time or while reads were in flight, as a share of the
        disk's sequential rate in turns with it."""
        moved, taken = self.samples(way, race.BYTES), self.samples(way, part)
        disk, best = self.samples(ways.IN_A_ROW, race.BYTES), self.samples(ways.IN_A_ROW)
        if not len(disk) or len(moved) != len(taken) or not (moved * taken).any():
            return None
        some = (moved > 0) & (taken > 0)
        return ratio(best / disk, taken[some] / moved[some], together=TOGETHER)

    def table(self, anchor: str) -> Table:
        """A row for each way; empty columns are left out."""

        def middle(part: str, unit: float) -> Column:
            return lambda way: number(self.median(way.test, part) / unit)

        def beside(other: str) -> Column:
            return lambda way: times(self.faster(way.test, other))

        def of_disk(part: str) -> Column:
            return lambda way: share(self.of_disk(way.test, part))

        caption = f"{self.name}, on {plural(self._threads, 'thread')}"
        rows = self.ways[self.ways["median"].notna()].itertuples()
        columns: dict[str, Column] = {
            "Way": lambda way: text(way.test, note=way.settings),
            "Budget": lambda way: text(settings(way).get("budget", "")),
            "ms a token": middle("run", 1e-3),
            **{f"Times {other}": beside(other) for other in BESIDE},
            "MB a token": middle(race.BYTES, 1e6),
            "GB/s reading": lambda way: number(self.rate(way.test)),
            "ms reading": middle(race.READING, 1e-3),
            "ms waiting": middle(race.WAITING, 1e-3),
            "Of the disk, reading": of_disk(race.READING),
            "Of the disk, always": of_disk("run"),
            "Neurons found": lambda way: percent(self.hit_rate(way.test)),
        }
        return table(anchor, caption, rows, columns, top=0).with_what_there_is()

    def rate(self, way: str) -> float:
        """GB/s while anything was read."""
        seconds = self.median(way, race.READING) or np.nan
        return self.median(way, race.BYTES) / seconds / 1e9

    def hit_rate(self, way: str) -> float:
        """Hit rate of neurons; NaN without any."""
        hits, misses = self.median(way, race.FOUND), self.median(way, race.MISSED)
        return hits / (hits + misses) if hits + misses > 0 else np.nan

    def bound(self, way: str, disk: str) -> float:
        """Lower bound on a token's seconds: the time to read its bytes from this disk, or to
        compute it."""
        best = (self.samples(disk, race.BYTES) / self.samples(disk)).max()
        return float(np.nanmax([self.median(way, race.BYTES) / best, self.median(ways.IN_MEMORY)]))

    def plot(self, anchor: str) -> list[Plot]:
        """Tokens a second by budget, beside what the bytes and the disk allow."""
        marks, ticks = list[dict[str, float | str]](), dict[float, str]()
        for way in self.ways["test"][self.ways["test"].str.contains(ways.OF_THE_WEIGHTS)]:
            if not len(self.samples(way)):
                continue
            x = float(way.partition("%")[0])
            ticks[x] = f"{x:g}"
            middle, *spread = 1 / np.quantile(self.samples(way), (0.5, 0.75, 0.25))
            measured = dict(zip(("value", "low", "high"), (middle, *spread), strict=True))
            marks.append({"name": "measured", "x": x, **measured})
            marks += [
                {"name": f"what the bytes allow, read {how}", "x": x,
                 "value": 1 / self.bound(way, disk)}
                for disk, how in DISKS.items() if len(self.samples(disk))
            ]  # fmt: skip
        titled = [{"title": "tokens a second", **mark} for mark in marks]
        caption = f"{self.name}: tokens a second by budget, higher is better"
        return panels(anchor, caption, titled, "budget, % of the weights' bytes", ticks)

    def notes(self) -> list[str]:
        """The disk's speed, what each way has in memory, who is absent."""
        told = []
        for disk, how in DISKS.items():
            if len(taken := self.samples(disk)):
                rates = self.samples(disk, race.BYTES) / taken / 1e9
                spread = f"[{rates.min():.2f}, {rates.max():.2f}]"
                told.append(f"{how} at {np.median(rates):.2f} GB/s {spread}")
        notes = [f"{self.name}: the disk reads {' and '.join(told)}."] if told else []
        for way in self.ways.itertuples():
            if not way.samples:
                notes.append(f"{self.name}: {way.test} is absent: {way.note}.")
            elif way.settings:
                words = way.settings.replace(",", ", ").replace("=", " ")
                notes.append(f"{self.name}: {way.test}: {words}.")
        return notes
