"""assay profile --ram-budget: what a step reads from disk and how long it waits, block by block."""

import json
import math
from typing import TYPE_CHECKING, Any

from bench.shell.display import about, grid, still_bar, teller, title

if TYPE_CHECKING:
    from rich.table import Table

    from bench.offload.meter import Block, StreamedStep
    from engine.shell.command_line.options import Loading


def profile_streamed(
    model: str, tokens: int, depth: int, loading: "Loading", as_json: bool
) -> None:
    """The command, once it is known that there is a budget."""
    from bench.machine.conditions import conditions
    from bench.offload.meter import streamed_step
    from engine.shell.show import loaded
    from engine.shell.terminal import stdout

    busy = conditions().busy
    with loaded(model, loading) as engine, still_bar() as bar:
        found = streamed_step(engine, tokens, depth, progress=teller(bar, "profiling: repeats"))
    if as_json:
        print(json.dumps(as_dict(found) | {"ram_budget": loading.ram_budget, "busy": busy}))
        return
    console = stdout()
    console.print(title(found.step, found.context), highlight=False)
    console.print()
    console.print(table(found))
    console.print()
    for line in (*notes(found), *([busy] if busy else [])):
        console.print(line, highlight=False)


def as_dict(found: "StreamedStep") -> dict[str, Any]:
    """The figures for programs, of a step on average: seconds, bytes, shares as fractions."""
    reading, steps = found.reading, found.reading.steps

    def of_block(block: "Block") -> dict[str, Any]:
        return {
            "bytes": block.bytes / steps,
            "waited_seconds": block.waited / steps,
            f"{reading.named}_found": None if math.isnan(block.hit_rate) else block.hit_rate,
            f"{reading.named}_pinned": block.pinned,
        }

    return {
        **about(found.step, found.context),
        "bytes": reading.bytes / steps,
        "reading_seconds": reading.busy / steps,
        "gb_per_second": reading.rate / 1e9,
        "waited_seconds": reading.whole.waited / steps,
        "blocks": [{"block": name, **of_block(block)} for name, block in reading.blocks.items()],
    }


def table(found: "StreamedStep") -> "Table":
    """A row for each block that has anything on disk, and one for all of them."""
    from engine.shell.terminal import figures

    reading, steps = found.reading, found.reading.steps
    sparse = any(block.hits + block.misses for block in reading.blocks.values())
    pinned = any(block.pinned for block in reading.blocks.values())
    of_neurons = [f"% {reading.named} found"] * sparse + ["pinned"] * pinned
    result = grid("a step on average", *figures("MB read", *of_neurons, "ms waited"))
    for name, block in {**reading.blocks, "all": reading.whole}.items():
        share = "" if math.isnan(block.hit_rate) else f"{100 * block.hit_rate:.1f}"
        result.add_row(
            name,
            f"{block.bytes / steps / 1e6:.2f}",
            *([share] * sparse + [f"{block.pinned:,}"] * pinned),
            f"{1e3 * block.waited / steps:.2f}",
        )
    return result


def notes(found: "StreamedStep") -> list[str]:
    """What the blocks' rows do not say."""
    reading, step = found.reading, found.step.median
    lines = [f"a step takes {1e3 * step:.2f} ms"]
    if not reading.bytes:
        return [*lines, "all weights are in memory"]
    share = reading.busy / sum(found.step.samples)
    lines.append(
        f"the disk gave {reading.rate / 1e9:.2f} GB/s while it was read, {min(1, share):.0%} of the"
        " time"
    )
    beside = (reading.bytes - reading.whole.bytes) / reading.steps / 1e6
    if beside >= 0.01:
        lines.append(f"{beside:.2f} MB more were read between two neurons, or ahead of a next step")
    return lines
