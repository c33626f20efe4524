"""assay ops, assay op: the table of ops, and any op alone."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.shell import options as o

if TYPE_CHECKING:
    from kernels.kernel import Kernel
    from reference.op import Case


def ops(as_json: o.Json = False) -> None:
    """List every op, its signature, and which kernels are certified on this machine."""
    from rich.markup import escape
    from rich.table import Table

    from engine.shell.show import stdout
    from kernels.certificates import Key, Store
    from kernels.table import KERNELS
    from reference.table import OPS

    known = Store().load()

    def state(kernel: "Kernel") -> str:
        if kernel.missing():
            return "not on this CPU"
        certificate = known.get(Key.of(kernel).digest)
        if certificate is None:
            return "untried"
        return certificate.level if certificate.passed else "FAILED"

    if as_json:
        kernels = [{"kernel": k.name, "op": k.op, "certificate": state(k)} for k in KERNELS]
        signatures = {name: op.signature for name, op in OPS.items()}
        print(json.dumps({"ops": signatures, "kernels": kernels}))
        return
    table = Table("op", "kernels", "formats", "certificate", "signature")
    for name, op in OPS.items():
        groups: dict[tuple[str, str], list[str]] = {}
        for kernel in (k for k in KERNELS if k.op == name):
            group = groups.setdefault((f"{kernel.target}/{kernel.variant}", state(kernel)), [])
            group.append(kernel.format or "")
        for i, ((variant, certificate), formats) in enumerate(groups.items()):
            first = (name, op.signature.replace(" -> ", "\n-> ")) if i == 0 else ("", "")
            listed = " ".join(formats)
            table.add_row(first[0], variant, listed, certificate, escape(first[1]))
        table.add_section()
    stdout().print(table)


def op(
    name: Annotated[str, typer.Argument(metavar="OP", help="An op of `assay ops`.")],
    format: Annotated[str | None, typer.Option(help="Weight format, e.g. Q4_0.")] = None,
    shape: Annotated[str, typer.Option(help="Sizes, e.g. tokens=1,hidden=2048,out=5632.")] = "",
    variant: Annotated[str | None, typer.Option(help="One variant only.")] = None,
    values: Annotated[str, typer.Option(help="Kind of values: normal, spiky, …")] = "normal",
    seed: Annotated[int, typer.Option(help="Same seed, same inputs.")] = 0,
    threads: o.Threads = 0,
    as_json: o.Json = False,
) -> None:
    """Run one op alone: its error against its bound, its time and GB/s on warm caches."""
    from engine.shell.show import stderr
    from kernels.judge import Candidate, judge
    from kernels.table import variants
    from reference.table import OPS

    if name not in OPS:
        raise ValueError(f"there is no op {name!r}: {', '.join(OPS)}")
    spec = OPS[name]
    if format and not spec.formats:
        raise ValueError(f"{name} takes no format, got {format}")
    if seed < 0:
        raise ValueError(f"--seed must not be negative, got {seed}")
    chosen = format or (spec.formats[0] if spec.formats else None)
    case = spec.case(parse_shape(shape), values, seed, chosen)
    kernels = [k for k in variants(name, case.format) if variant in (None, k.variant)]
    usable = [k for k in kernels if not k.missing() and k.takes(case.shape)]
    if not usable:
        raise ValueError(f"no kernel of {name} serves here: {_why(kernels, variant)}")
    rows: list[dict[str, Any]] = []
    failed = ""
    for kernel in usable:
        verdict = judge(Candidate.of(kernel), case)
        row: dict[str, Any] = {
            "kernel": kernel.name,
            "shape": dict(case.shape),
            "values": values,
            "seed": seed,
            "passed": verdict.passed,
            "error_over_bound": verdict.worst,
            "nmse": verdict.nmse,
        }
        if verdict.passed:
            row |= _measure(kernel, case, threads)
        else:
            failed = failed or f"{kernel.name}: {verdict.failure}"
        rows.append(row)
    if as_json:
        print(json.dumps(rows))
    else:
        sizes = ",".join(f"{axis}={size}" for axis, size in case.shape.items())
        for row in rows:
            line = f"{row['kernel']} {sizes}"
            if row["passed"]:
                line += (
                    f"  error/bound {row['error_over_bound']:.3f}  nmse {row['nmse']:.2e}"
                    f"  {1e6 * row['seconds']:.1f} us  {row['gb_per_second']:.2f} GB/s"
                    f"  {row['gflop_per_second']:.2f} GFLOP/s  ({row['threads']} threads)"
                )
            else:
                line += "  FAILED"
            print(line)
    if failed:
        stderr.print(f"assay: {failed}", highlight=False, soft_wrap=True)
        raise typer.Exit(1)


def parse_shape(text: str) -> dict[str, int]:
    """`tokens=1,hidden=2048` as sizes by axis."""
    sizes = {}
    for word in filter(None, text.split(",")):
        axis, equals, size = word.partition("=")
        if not equals or not (size.isascii() and size.isdigit()) or len(size) > 12:
            raise typer.BadParameter(f"--shape wants axis=size,…; got {word!r}")
        sizes[axis.strip()] = int(size)
        if int(size) > 2**31:
            raise typer.BadParameter(f"--shape: {word} is too large")
    return sizes


def _why(kernels: "Sequence[Kernel]", variant: str | None) -> str:
    if not kernels:
        return f"no variant {variant!r}" if variant else "none is written"
    lacking = [f"{k.variant} needs {', '.join(k.missing())}" for k in kernels if k.missing()]
    return "; ".join(lacking) or "none takes this shape"


def _measure(kernel: "Kernel", case: "Case", threads: int) -> dict[str, float]:
    """The median time of a call on warm caches, and the rates that the op's cost gives."""
    import numpy as np

    from engine.model import physical_cores
    from kernels.call import empty_outputs, stages
    from kernels.cpu.team import Program, Team

    inputs = kernel.spec.make(case)
    outputs = empty_outputs(kernel.spec, case.shape, case.format)
    bound = stages(kernel, inputs, outputs)
    program = Program([(share, block) for share, block, _ in bound])
    cost = kernel.spec.cost(case.shape, case.format)
    seconds: list[float] = []
    with Team(threads or physical_cores()) as team:
        ending = time.perf_counter() + 0.3
        while len(seconds) < 5 or (time.perf_counter() < ending and len(seconds) < 10000):
            started = time.perf_counter()
            team.run(program)
            seconds.append(time.perf_counter() - started)
        median = float(np.median(seconds))
        return {
            "seconds": median,
            "samples": len(seconds),
            "threads": team.n_threads,
            "gb_per_second": cost.bytes / median / 1e9,
            "gflop_per_second": cost.operations / median / 1e9,
        }
