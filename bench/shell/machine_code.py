"""The machine code of an op's CUDA kernels, which needs no GPU: a row for each launch."""

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from bench.shell.display import grid

if TYPE_CHECKING:
    from kernels.cuda.runtime.sass import MachineCode

THREADS = 128  # threads of a block, where nothing tells how many run


def show(op: str, format: str | None, variant: str | None, capability: int, as_json: bool) -> None:
    """What the op's CUDA kernels take, load and wait for on GPUs of a capability."""
    from engine.shell.terminal import figures, stdout
    from kernels.cuda.runtime import sass
    from kernels.cuda.runtime.device import OLDEST
    from kernels.cuda.table import CUDA_KERNELS

    if capability < OLDEST:
        raise typer.BadParameter(f"--sm is at least {OLDEST}, got {capability}")
    wanted = [k for k in CUDA_KERNELS if k.op == op and format in (None, k.format)]
    kernels = [k for k in wanted if variant in (None, k.variant) and k.capability <= capability]
    if not kernels:
        raise typer.BadParameter(f"{op} has no CUDA kernel of these for sm_{capability}")
    if reason := sass.missing():
        raise RuntimeError(reason)
    rows = [
        {"kernel": kernel.name, **row(sass.read(launch, capability))}
        for kernel in kernels
        for launch in kernel.launches
    ]
    if as_json:
        print(json.dumps(rows))
        return
    names = figures("registers", "spilled", "shared", "blocks", "loads", "copied", "a product")
    shown = grid("kernel", "launch", *names)
    for one in rows:
        loads = " ".join(f"{n}x{size}" for size, n in one["loads"].items())
        figured = (one[name] for name in ("registers", "spilled", "shared", "blocks_at_once"))
        product = one["instructions_a_product"]
        shown.add_row(
            one["kernel"], one["launch"], *map(str, figured), loads, str(one["copies_of_loads"]),
            f"{product:.1f}" if product else "",
        )  # fmt: skip
    console = stdout()
    console.print(shown)
    console.print(
        f"blocks of {THREADS} threads that fit a multiprocessor; loads of the loop that loads most,"
        " as count x bytes; copied: loads that something waits for only to move them;"
        " a product: instructions for each product of tensor cores",
        highlight=False,
    )


def row(code: "MachineCode") -> dict[str, Any]:
    """Bytes except counts; `loads` by width in bytes."""
    from kernels.cuda.runtime.occupancy import blocks_at_once

    used, loop, multiplying = code.compiled, code.stream, code.multiplying
    loads = Counter(load.bytes for load in loop.loads) if loop else Counter[int]()
    at_once = blocks_at_once(code.capability, THREADS, used.registers, used.shared)
    return {
        "launch": code.launch.function,
        "registers": used.registers,
        "spilled": used.spills,
        "shared": used.shared,
        "blocks_at_once": at_once,
        "loads": dict(sorted(loads.items(), reverse=True)),
        "copies_of_loads": sum(len(each.copies_of_loads) for each in code.loops),
        "instructions_a_product": len(multiplying.instructions) / multiplying.products
        if multiplying
        else None,
    }
