"""An op at a size measured on a GPU: our kernels and their peers in turns, cold, checked."""

from collections.abc import Collection
from dataclasses import replace

from bench.cuda.bound import Bound
from bench.cuda.cases import OpCase
from bench.cuda.ceilings import Ceilings
from bench.cuda.clock import RULE, Clock, Enqueue, contender
from bench.cuda.peers import peers
from bench.race.experiment import Experiment
from bench.race.results import Measurement
from kernels.cuda.runtime.gpu import Gpu
from kernels.cuda.runtime.kernel import CudaKernel
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


def row_of(case: OpCase, ceilings: Ceilings) -> Measurement:
    """What is known of a case before it is measured."""
    return ceilings.limit(case.cost.bytes, case.cost.operations).of(Measurement(
        bench="gpu", test=case.test, target="cuda", format=case.format, shape=case.sizes,
        cache="cold", bytes=case.cost.bytes, operations=case.cost.operations,
    ))  # fmt: skip


def measure(
    gpu: Gpu, clock: Clock, ceilings: Ceilings, case: OpCase, out: Collection[str]
) -> list[Measurement]:
    """A row for each contender, those who are absent too; kernels called so are left `out`. Who
    gives wrong outputs has no speed."""
    copies = 1 + int(TIMES * ceilings.cache // max(case.cost.bytes, 1))
    kernels = kernels_for(case, gpu, out)
    if not kernels:
        raise LookupError(f"no kernel for {case.op} {case.format} passed")
    common = row_of(case, ceilings)
    bound = {k.variant: Bound(gpu, k, case.inputs, case.cold, copies) for k in kernels}
    plain = next((bound[k.variant] for k in kernels if not k.pack), None)
    others = peers(gpu, case, plain.buffers) if plain else {}
    entries: dict[str, tuple[Measurement, Enqueue | str]] = {}
    for kernel in kernels:
        own, row = bound[kernel.variant], replace(common, variant=kernel.variant, checked=1)
        wrong = check(case, kernel, own)
        entries[kernel.variant] = row, wrong or own.enqueue
        if kernel.activations == "int8":
            rounds = replace(row, settings=ROUNDING)
            entries[f"{kernel.variant} {ROUNDING}"] = rounds, wrong or own.enqueue_rounding
    entries |= {name: (replace(common, contender=name), peer) for name, peer in others.items()}
    clock.wake()
    raced = Experiment({name: contender(clock, *entry) for name, entry in entries.items()})
    return raced.run(RULE)


def check(case: OpCase, kernel: CudaKernel, bound: Bound) -> str:
    """What is wrong with its output, before anything is timed."""
    bound.enqueue(0)
    inputs, outputs = case.part(case.inputs, bound.outputs())
    at = Case(sizes(kernel.spec, inputs, case.format), format=case.format)
    return compare(kernel, at, inputs, outputs).failure
