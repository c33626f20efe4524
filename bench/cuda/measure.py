"""An op at a size measured on a GPU: our kernels and their peers in turns, cold, checked."""

import secrets
from collections.abc import Collection, Mapping
from dataclasses import replace

from bench.cuda.bound import Bound
from bench.cuda.cases import OpCase
from bench.cuda.ceilings import Ceilings
from bench.cuda.clock import Clock
from bench.cuda.contest import Contender, Entry, Outcome, contest
from bench.cuda.peers import peers
from bench.results import Measurement
from kernels.cuda.gpu import Gpu
from kernels.cuda.kernel import CudaKernel
from kernels.cuda.table import CUDA_KERNELS
from kernels.judge import compare
from kernels.shapes import sizes
from reference.op import Case

OURS = "assay"
TIMES = 8  # the cache that copies together are larger than
ROUNDING = "rounding activations"  # what a second row has beside the kernel itself


def kernels_for(case: OpCase, gpu: Gpu, out: Collection[str]) -> list[CudaKernel]:
    """All that can do it, but for those that are called so."""
    those = [k for k in CUDA_KERNELS if (k.op, k.format) == (case.op, case.format)]
    return [k for k in those if k.takes(case.shape) and not k.lacks(gpu) and k.name not in out]


def measure(
    gpu: Gpu, clock: Clock, ceilings: Ceilings, case: OpCase, out: Collection[str]
) -> list[Measurement]:
    """A row for each contender, those who are absent too; kernels called so are left `out`."""
    copies = 1 + int(TIMES * ceilings.cache // max(case.cost.bytes, 1))
    bound: dict[str, Bound] = {}
    entries: list[Entry] = []
    kernels = kernels_for(case, gpu, out)
    if not kernels:
        raise LookupError(f"no kernel for {case.op} {case.format} passed")
    for kernel in kernels:
        own = bound[kernel.variant] = Bound(gpu, kernel, case.inputs, case.cold, copies)
        entries.append(Contender(kernel.variant, own.enqueue))
        if kernel.activations == "int8":
            entries.append(Contender(f"{kernel.variant} {ROUNDING}", own.enqueue_rounding))
    plain = next((bound[k.variant] for k in kernels if not k.pack), None)
    if plain:
        entries += peers(gpu, case, plain.buffers)
    failures = {k.variant: check(case, k, bound[k.variant]) for k in kernels}
    return rows(case, ceilings, contest(clock, entries), failures)


def check(case: OpCase, kernel: CudaKernel, bound: Bound) -> str:
    """What is wrong with its output, before anything is timed."""
    bound.enqueue(0)
    inputs, outputs = case.part(case.inputs, bound.outputs())
    at = Case(sizes(kernel.spec, inputs, case.format), format=case.format)
    return compare(kernel, at, inputs, outputs).failure


def rows(
    case: OpCase, ceilings: Ceilings, outcome: Outcome, failures: Mapping[str, str]
) -> list[Measurement]:
    """The outcome's, ours by their variants, which `failures` names; of those of wrong outputs
    without samples."""
    absent = {entry.name: entry.reason for entry in outcome.absent}
    limit = ceilings.limit(case.cost.bytes, case.cost.operations)
    common = limit.of(Measurement(
        bench="gpu", test=case.test, target="cuda", format=case.format, shape=case.sizes,
        cache="cold", bytes=case.cost.bytes, operations=case.cost.operations,
        rivals=secrets.token_hex(4),
    ))  # fmt: skip
    found = []
    for name in (*outcome.samples, *absent):
        variant, _, settings = name.partition(" ")
        samples, note = outcome.samples.get(name, ()), absent.get(name, "")
        if variant not in failures:
            found.append(replace(common, contender=name, samples=samples, note=note))
        elif wrong := failures[variant]:
            found.append(replace(common, variant=variant, settings=settings, note=wrong))
        else:
            own = replace(common, variant=variant, settings=settings, checked=1)
            found.append(replace(own, samples=samples, note=note))
    return found
