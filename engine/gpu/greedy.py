"""Greedy sampling where the logits are: a few bytes come back in place of the whole vocabulary."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.sampling.chain import over
from engine.sampling.sampler import Argmax
from kernels.cuda.runtime.call import between, calls
from kernels.cuda.runtime.device import Buffer, Device
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.dispatch import KernelSpec

FOUND = np.dtype([("token", "i4"), ("", "V12"), ("log_sum", "f8"), ("", "V8")])  # of a row


def needs(vocab: int) -> tuple[KernelSpec, ...]:
    """What it asks of the kernels."""
    return over("greedy", vocab), over("log_sum_exp", vocab)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """What is run for each row, in `scratch` that it shares; what that leaves in `memory` is read
    into `found`."""

    found: np.ndarray[Any, np.dtype[Any]]
    memory: Buffer
    scratch: Sequence[Buffer]
    runs: Sequence[Callable[[], None]]


class Greedy:
    """By kernels for `needs(vocab)`, over `logits` float32 [rows, vocab] of the last step. Its
    memory is taken when it is first asked."""

    def __init__(
        self, device: Device, kernels: Mapping[KernelSpec, CudaKernel], logits: Buffer, vocab: int
    ) -> None:
        self._device, self._logits, self._vocab = device, logits, vocab
        self._kernels = [kernels[need] for need in needs(vocab)]
        self._row_bytes = 4 * vocab
        self._recorded: _Recorded | None = None
        for kernel in self._kernels:
            for stage in kernel.stages:
                device.prepare(stage)

    def of(self, rows: int) -> list[Argmax]:
        """What it finds in each of the first rows."""
        if self._recorded is None or rows > len(self._recorded.runs):
            self._recorded = self._record(rows)
        for run in self._recorded.runs[:rows]:
            run()
        found, logit = self._recorded.found[:rows], np.empty(1, np.float32)
        self._device.read(self._recorded.memory, found)
        answers = []
        for row, (token, log_sum) in enumerate(found[["token", "log_sum"]].tolist()):
            begin = row * self._row_bytes + 4 * token
            self._device.read(self._logits.at(begin, 4), logit)
            answers.append(Argmax(token, float(logit[0]), log_sum))
        return answers

    def _record(self, rows: int) -> "_Recorded":
        """For so many rows."""
        shape = {"vocab": self._vocab}
        scratch = [self._device.empty(between(k, shape)["scratch"]) for k in self._kernels]
        found = np.zeros(rows, FOUND)
        memory, runs = self._device.empty(found.nbytes), []
        for row in range(rows):
            begin = memory.address + row * FOUND.itemsize
            arguments = {
                "logits": self._logits.address + row * self._row_bytes,
                "token": begin,
                "out": begin + 16,
            }
            with self._device.capture() as run:
                for kernel, own in zip(self._kernels, scratch, strict=True):
                    own_arguments = {**arguments, "scratch": own.address}
                    for do in calls(self._device, kernel.stages, own_arguments, shape):
                        do()
            runs.append(run)
        return _Recorded(found, memory, scratch, runs)
