"""A kernel over device memory of its own, to be run again and again."""

from collections.abc import Callable, Sequence

import numpy as np

from kernels.cuda.runtime.call import between, calls, device_sizes, packed_weights, stages
from kernels.cuda.runtime.device import Device, upload
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.product import Stage
from kernels.shapes import empty_outputs, sizes
from reference.op import Arguments, Array

Call = Callable[[], None]


class Bound:
    """A kernel with these inputs, of which those called `cold` lie there in `copies`: each run
    reads the next ones, so that no cache holds them. Where it reads rounded activations, they are
    rounded here."""

    def __init__(
        self,
        device: Device,
        kernel: CudaKernel,
        inputs: Arguments,
        cold: Sequence[str] = (),
        copies: int = 1,
    ) -> None:
        host = inputs | packed_weights(kernel, inputs)
        arrays = {n: np.ascontiguousarray(a) for n, a in host.items() if isinstance(a, np.ndarray)}
        shape = device_sizes(kernel, {n: a.shape for n, a in arrays.items()})
        shape |= sizes(kernel.spec, inputs, kernel.format)
        self._device, self.cold = device, tuple(cold)
        self._outputs = empty_outputs(kernel.spec, shape, kernel.format)
        self.buffers = {n: [upload(device, a)] for n, a in arrays.items() if n not in cold}
        self.buffers |= {n: [upload(device, arrays[n]) for _ in range(copies)] for n in cold}
        self.buffers |= {n: [device.empty(a.nbytes)] for n, a in self._outputs.items()}
        self.buffers |= {n: [device.empty(s)] for n, s in between(kernel, shape).items()}
        for output, source in kernel.in_place:
            device.write(self.buffers[output][0], arrays[source])
        every = stages(kernel)
        before = every[: -len(kernel.stages)]
        self._rounding = self._calls(before, host, shape, 0)
        self._turns = [self._calls(kernel.stages, host, shape, i) for i in range(copies)]
        for stage in every:
            device.prepare(stage)
        self._run(self._rounding)

    def _calls(
        self, every: Sequence[Stage], host: Arguments, shape: dict[str, int], turn: int
    ) -> list[Call]:
        found = {name: of[turn % len(of)].address for name, of in self.buffers.items()}
        return calls(self._device, every, {**host, **found}, shape)

    def _run(self, every: Sequence[Call]) -> None:
        for do in every:
            do()

    def enqueue(self, i: int) -> None:
        """Run it on the i-th copies."""
        self._run(self._turns[i % len(self._turns)])

    def enqueue_rounding(self, i: int) -> None:
        """The same, rounding its activations anew."""
        self._run(self._rounding)
        self.enqueue(i)

    def launches(self, *, rounding: bool) -> int:
        """How many a run takes."""
        return len(self._turns[0]) + (len(self._rounding) if rounding else 0)

    def outputs(self) -> dict[str, Array]:
        """What the last run gave."""
        for name, array in self._outputs.items():
            self._device.read(self.buffers[name][0], array)
        return self._outputs
