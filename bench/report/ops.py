"""Sections on ops: beside the machine's limits, beside BLAS, and what comes before they run."""

from collections.abc import Sequence

from bench.contenders.contender import OURS
from bench.limits import Limits
from bench.ratio import ratio
from bench.report.lookup import (
    gflops,
    gigabytes,
    kernel,
    largest,
    mark,
    ops,
    present,
    shape,
    sizes,
)
from bench.report.plots import Ceiling, Line, Mark, Point, panels, roofline
from bench.report.table import (
    NONE,
    Cell,
    Plot,
    Row,
    Section,
    Table,
    count,
    duration,
    number,
    percent,
    plural,
    text,
    time,
)
from bench.results import Measurement, Run

PARTS = {"linear": "Linear", "others": "All other ops"}
DECODE = "Linear, one token"
PROMPT = "Linear, more tokens"


def roofline_section(run: Run) -> Section:
    """Every op against what the machine allows."""
    found = ops(run)
    limits, problem = _limits(run)
    parts = {
        "linear": [m for m in found if m.test == "linear"],
        "others": [m for m in found if m.test != "linear"],
    }
    plots = []
    for name, ms in parts.items():
        points = [
            Point(m.variant, m.cache, m.operations / m.bytes, gflops(m))
            for m in ms
            if m.operations and m.bytes
        ]
        if points:
            plots.append(
                roofline(
                    f"roofline-{name}",
                    f"{PARTS[name]}: each point is a kernel at one size",
                    points,
                    ceilings(limits, ms),
                )
            )
    linear = parts["linear"]
    cut = {
        "decode": (DECODE, [m for m in linear if sizes(m).get("tokens") == 1]),
        "prompt": (PROMPT, [m for m in linear if sizes(m).get("tokens") != 1]),
        "others": (PARTS["others"], parts["others"]),
    }
    tables = [_table(f"ops-{name}", title, ms) for name, (title, ms) in cut.items() if ms]
    return Section(
        "rooflines",
        "Rooflines",
        "How near each kernel comes to what this machine can do. Lines are measured ceilings: a"
        " slope is the bandwidth of memory or of a cache, a level the peak of arithmetic. Hollow"
        " points ran on cold caches, filled ones on hot. Operations are those of a float product"
        " even where the arithmetic is int8. Ops that only move bytes are in the table alone.",
        tuple(plots),
        tuple(tables),
        (f"No ceilings are drawn: {problem}.",) if problem and found else (),
    )


def _limits(run: Run) -> tuple[Limits | None, str]:
    """The machine's, or why there are none."""
    if not run.limits:
        return None, "this run has none of the machine's limits"
    try:
        return Limits.from_json(run.limits), ""
    except ValueError as error:  # e.g. of a format of earlier days
        return None, str(error)


def ceilings(limits: Limits | None, ms: Sequence[Measurement]) -> list[Ceiling]:
    """Bandwidths and peaks for the threads that most of these ran on."""
    if limits is None or not ms:
        return []
    counts = [m.threads for m in ms]
    threads = max(set(counts), key=counts.count)
    found = []
    if any(b.threads == threads for b in limits.bandwidths):
        for level in ("memory", *reversed([cache.level for cache in limits.caches])):
            cache = next((c for c in limits.caches if c.level == level), None)
            best = limits.bandwidth(threads, cache.reach(threads) if cache else None)
            found.append(Ceiling(f"{level} {best.kind}", slope=best.bytes_per_second / 1e9))
    for kind in dict.fromkeys(p.kind for p in limits.peaks if p.threads == threads):
        peak = limits.peak(kind, threads)
        name = f"{kind} peak ({peak.unit})" if peak.unit else f"{kind} peak"
        found.append(Ceiling(name, level=peak.operations_per_second / 1e9))
    return found


def _table(anchor: str, title: str, ms: Sequence[Measurement]) -> Table:
    first = largest(ms)
    rest = [m for m in ms if not any(m is known for known in first)]
    columns = (
        "Kernel", "Shape", "Cache", "Threads", "Time", "GB/s", "GFLOP/s", "Limit", "Share",
    )  # fmt: skip
    caption = f"{title}: time of a call, and its share of what binds it; the largest sizes first"
    rows = tuple(map(_row, (*first, *rest)))
    return Table(anchor, caption, columns, rows, top=min(len(first), 14)).on_threads()


def _row(m: Measurement) -> Row:
    models = "" if m.model == "sweep" else m.model
    return (
        text(kernel(m)),
        text(shape(m), note=models),
        text(m.cache),
        count(m.threads),
        time(m.median, m.note),
        number(gigabytes(m)) if m.bytes else NONE,
        number(gflops(m)) if m.operations else NONE,
        text(m.limit),
        percent(m.reached) if m.share else NONE,
    )


def matmul_section(run: Run) -> Section:
    """Square products over sizes, and float products of models beside BLAS."""
    mine = [m for m in ops(run) if m.test == "linear"]
    theirs = [
        m
        for m in present(run.measurements)
        if (m.bench, m.test, m.phase) == ("op", "linear", "run") and m.contender != OURS
    ]
    squares = [m for m in (*mine, *theirs) if "sweep" in m.model.split(", ")]
    plots = _sweep_plot(squares)
    tables = (_sweep_table(squares), _blas_table(mine, theirs))
    return Section(
        "matmul",
        "Matrix products",
        "bench_matmul: square products from what a cache holds to what it does not. NumPy's BLAS"
        " multiplies in float32 and stands in every panel as the common measure.",
        tuple(plots),
        tuple(table for table in tables if table.rows),
    )


def _name(m: Measurement) -> str:
    return m.variant if m.contender == OURS else m.contender


def _sweep_plot(squares: Sequence[Measurement]) -> list[Plot]:
    hot = [m for m in squares if m.cache != "cold"] or squares
    formats = list(dict.fromkeys(m.format for m in hot if m.contender == OURS))
    lines = {}
    for stored in formats:
        shown = [m for m in hot if m.contender != OURS or m.format == stored]
        lines[stored] = [
            _line(name, [m for m in shown if _name(m) == name])
            for name in dict.fromkeys(map(_name, shown))
        ]
    if not lines:
        return []
    xs = sorted({x for many in lines.values() for line in many for x in line.x})
    ticks = {x: f"{x:g}" for x in xs}
    caption = "GFLOP/s by the side of the square, log-log; median and quartiles"
    return [panels("plot-sweep", caption, lines, "side", ticks, log=True)]


def _line(name: str, ms: Sequence[Measurement]) -> Line:
    ordered = sorted(ms, key=lambda m: sizes(m).get("hidden", 0))
    marks: tuple[Mark, ...] = tuple(mark(m, m.operations / 1e9) for m in ordered)
    return Line(name, tuple(sizes(m).get("hidden", 0) for m in ordered), marks)


def _sweep_table(squares: Sequence[Measurement]) -> Table:
    hot = [m for m in squares if m.cache != "cold"] or squares
    sides = sorted({sizes(m).get("hidden", 0) for m in hot})
    names = dict.fromkeys((_name(m), m.format) for m in hot)
    found = {(_name(m), m.format, sizes(m).get("hidden", 0)): m for m in hot}
    rows = []
    for name, stored in names:
        cells = [found.get((name, stored, side)) for side in sides]
        rates = [number(gflops(m), note=duration(m.median)) if m else NONE for m in cells]
        rows.append((text(name), text(stored), *rates))
    caches = " and ".join(sorted({f"on {m.cache} caches" for m in hot if m.cache}))
    columns = ("By", "Format", *(f"{side}²" for side in sides))
    caption = ", ".join(filter(None, ("GFLOP/s of square products, by side", caches)))
    return Table("sweep", caption, columns, tuple(rows), top=20)


def _blas_table(mine: Sequence[Measurement], theirs: Sequence[Measurement]) -> Table:
    """Our fastest products beside each rival's of the same size and format."""
    rows = []
    for other in theirs:
        same = [
            m
            for m in sorted(mine, key=lambda m: m.median)
            if (m.format, m.shape, m.cache, m.threads)
            == (other.format, other.shape, other.cache, other.threads)
        ]
        for m in same[:1]:
            turns = bool(m.rivals) and m.rivals == other.rivals
            found = ratio(other.samples, m.samples, together=int(turns))
            words = f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
            tone = ("good" if found.value > 1 else "bad") if found.significant else ""
            rows.append((
                text(shape(m)), text(m.variant), text(m.cache),
                number(gflops(m)), text(other.contender), number(gflops(other)),
                Cell(words + ("" if turns else " †"), found.value, tone=tone),
            ))  # fmt: skip
    columns = ("Shape", "Variant", "Cache", "Assay", "Rival", "GFLOP/s", "Assay ÷ rival")
    return Table("blas", f"{_formats(theirs)} products beside BLAS, GFLOP/s", columns, tuple(rows))


def _formats(ms: Sequence[Measurement]) -> str:
    return " and ".join(sorted({m.format for m in ms})) or "Float"


def costs_section(run: Run) -> Section:
    """What comes before the first call: compile, certify, pack."""
    phases = {phase: ops(run, phase) for phase in ("compile", "certify", "pack")}
    names = dict.fromkeys(kernel(m) for ms in phases.values() for m in ms)
    rows = []
    for name in names:
        best = {
            phase: next((m for m in largest(ms) if kernel(m) == name), None)
            for phase, ms in phases.items()
        }
        packed = best["pack"]
        rows.append((
            text(name),
            *(time(m.median, m.shape) if m else NONE for m in best.values()),
            number(gigabytes(packed), note=packed.shape) if packed and packed.bytes else NONE,
        ))  # fmt: skip
    rows.sort(key=lambda row: -sum(cell.value or 0.0 for cell in row[1:4]))
    sums = [
        f"{phase} {duration(sum(m.median for m in largest(ms)))} for {plural(len(ms), 'kernel')}"
        for phase, ms in phases.items()
        if ms and phase != "pack"
    ]
    columns = ("Kernel", "Compile", "Certify", "Pack", "Pack, GB/s")
    caption = "Before the first call: once a machine, but for packing, which is once a load"
    lead = "None of this is in any figure above: kernels are compiled, certified and their weights"
    lead += " packed before the clock runs."
    lead += f" In all: {'; '.join(sums)}." if sums else ""
    table = Table("costs", caption, columns, tuple(rows))
    return Section("costs", "Compile, certify, pack", lead, tables=(table,) if rows else ())
