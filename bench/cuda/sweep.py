"""Knobs of our CUDA kernels measured on a GPU: each other value by itself, in turns with the
default, which it has to agree with bit for bit. What is better goes into the kernel's Config."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from statistics import geometric_mean

from bench.cuda.cases import OpCase
from bench.cuda.clock import RULE, Ceilings, Clock, Enqueue, contender
from bench.cuda.measure import Bound, check, copies_of, kernels_for, row_of
from bench.race.experiment import Experiment, first_line
from bench.race.results import Measurement
from kernels.cuda.runtime.gpu import Gpu
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.knob import Values

SWEPT = "knobs of "  # before the name of the test
CLEARLY = 1.01  # times as fast at every size, or the default is as good


def choices(kernel: CudaKernel, tokens: int) -> Iterator[Values]:
    """The defaults, then each other value of the knobs that show in steps of so many tokens."""
    yield {}
    for knob in kernel.knobs:
        if tokens in knob.tokens:
            yield from ({knob.name: value} for value in knob.others)


def sweep(
    gpu: Gpu, clock: Clock, ceilings: Ceilings, case: OpCase, out: Collection[str]
) -> list[Measurement]:
    """A row for each choice of each kernel; `settings` name what was chosen."""
    found = []
    common = replace(row_of(case, ceilings), test=f"{SWEPT}{case.test}")
    for kernel in kernels_for(case, gpu, out):
        usual = Bound(gpu, kernel, case.inputs, case.cold, copies_of(case, ceilings))
        wrong = check(case, kernel, usual)
        want = {name: array.tobytes() for name, array in usual.outputs().items()}
        entries: dict[str, tuple[Measurement, Enqueue | str]] = {}
        for values in choices(kernel, case.shape["tokens"]):
            settings = ",".join(f"{name}={value}" for name, value in values.items())
            row = replace(common, variant=kernel.variant, settings=settings, checked=1)
            entries[settings] = row, wrong or _same(usual, kernel.tuned(values), want)
        clock.wake()
        raced = Experiment({name: contender(clock, *entry) for name, entry in entries.items()})
        found += raced.run(RULE)
    return found


def _same(usual: Bound, tuned: CudaKernel, want: dict[str, bytes]) -> Enqueue | str:
    """What runs a choice, or what is wrong with it: it does not run, or has other bits."""
    try:
        own = usual.running(tuned)
        own.enqueue(0)
        got = own.outputs()
    except Exception as error:  # too much shared memory, for example
        return first_line(error)
    different = [name for name, array in got.items() if array.tobytes() != want[name]]
    return f"{different[0]} has other bits" if different else own.enqueue


def gains(rows: Iterable[Measurement]) -> Iterator[str]:
    """Each choice, by how many times as fast as the defaults it was, the best first, and which of
    them are better at every size."""
    swept = [row for row in rows if row.samples and row.test.startswith(SWEPT)]
    usual = {(row.kernel_name, row.shape): row.median for row in swept if not row.settings}
    ratios: dict[str, list[float]] = defaultdict(list)
    for row in swept:
        if row.settings and (before := usual.get((row.kernel_name, row.shape))):
            ratios[f"{row.kernel_name} {row.settings}"].append(before / row.median)
    for choice, own in sorted(ratios.items(), key=lambda one: -geometric_mean(one[1])):
        better = ": choose it" if min(own) > CLEARLY else ""
        least, most = min(own), max(own)
        yield f"{choice}: {geometric_mean(own):.3f} [{least:.3f}, {most:.3f}] of {len(own)}{better}"
