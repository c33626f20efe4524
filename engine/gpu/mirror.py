"""A step's inputs on a device: what changes in every step is sent as one transfer, lasting inputs
only where they changed. A step may leave the next one's tokens on the device, which are then not
sent."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from engine.gpu.layout import MULTIPLE
from kernels.cuda.runtime.device import Buffer, Device, upload

BY_SEQUENCE = ("lists", "page_lists")
LASTING = (*BY_SEQUENCE, "cell_positions")
TOKENS, LOGPROBS = "tokens", "logprobs"
FOUND = (LOGPROBS, TOKENS)  # what a step may leave, adjacent at the end of the transfer
LEFT = -1  # a token that the previous step has left on the device

Array = np.ndarray[Any, np.dtype[Any]]


class Inputs:
    """`host` has the inputs by name, written before a step; those in LASTING are the arrays that
    were passed in. `buffers` are the device's copies."""

    def __init__(self, device: Device, inputs: Mapping[str, Array]) -> None:
        names = [name for name in inputs if name not in (*LASTING, *FOUND)]
        fresh = {n: inputs[n] for n in (*names, *(name for name in FOUND if name in inputs))}
        begins, end = dict[str, int](), 0
        for name, array in fresh.items():
            begins[name] = end
            end += -(-array.nbytes // MULTIPLE) * MULTIPLE
        self._device, self._fresh, self._begins = device, np.zeros(end, np.uint8), begins
        self._memory = device.empty(end)
        self.host: dict[str, Array] = {}
        self.buffers: dict[str, Buffer] = {}
        for name, array in fresh.items():
            begin, size = begins[name], array.nbytes
            own = self._fresh[begin : begin + size]
            self.host[name] = own.view(array.dtype).reshape(array.shape)
            self.buffers[name] = self._memory.at(begin, size)
        self._lasting = {n: _Mirrored(device, inputs[n]) for n in LASTING if n in inputs}
        for name, mirrored in self._lasting.items():
            self.host[name], self.buffers[name] = inputs[name], mirrored.buffer

    def send(self, tokens: int) -> None:
        """Send the inputs of a step of so many tokens; where tokens are LEFT on the device,
        everything else."""
        left = TOKENS in self._begins and tokens > 0 and self.host[TOKENS][0] == LEFT
        end = self._begins[LOGPROBS] if left else len(self._fresh)
        self._device.write(self._memory, self._fresh[:end])
        for name, lasting in self._lasting.items():
            sequences = self.host["spans"][:tokens, 0].tolist() if name in BY_SEQUENCE else [0]
            lasting.send(set(sequences))

    def found(self, rows: int) -> Buffer:
        """Where the device has the last step's results for its first rows."""
        begin, tokens = (self._begins[name] for name in FOUND)
        return self._memory.at(begin, tokens - begin + 4 * rows)

    def read(self, found: Array, rows: int) -> tuple[list[float], list[int]]:
        """Log-probabilities and tokens from those bytes."""
        begin, tokens = (self._begins[name] for name in FOUND)
        logprobs = found[: 8 * rows].view(np.float64)
        return logprobs.tolist(), found[tokens - begin :].view(np.int32).tolist()


class _Mirrored:
    """Rows of a host array, of which the device has the last sent state."""

    def __init__(self, device: Device, array: Array) -> None:
        self._device, self._rows = device, np.atleast_2d(array)
        self._sent = self._rows.copy()
        self.buffer = upload(device, self._sent)

    def send(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            row, sent = self._rows[number], self._sent[number]
            changed = np.flatnonzero(row != sent)
            if len(changed):
                part = slice(int(changed[0]), int(changed[-1]) + 1)
                begin = (number * row.size + part.start) * row.itemsize
                size = (part.stop - part.start) * row.itemsize
                self._device.write(self.buffer.at(begin, size), row[part])
                sent[part] = row[part]
