"""Tiny CUDA kernels, to try the emulator with."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from conformance import cuda
from conformance.cuda.emulator import Emulator
from kernels.cuda.device import Buffer, upload
from kernels.cuda.launch import FOLDER, Grid, Launch
from reference.op import Array

THREADS = 64
SIGNATURE = "x: i32[n] -> out: i32[n]"


def tiny(
    folder: Path, body: str, blocks: int = 1, threads: int = THREADS, shared: int = 0
) -> Launch:
    """A kernel with this body, `n` ints x in, as many out."""
    text = '#include "portable.cuh"\n__constant__ int TABLE[40] = {1, 2, 3, 4};\n'
    text += f'extern "C" __global__ void tiny(const int* x, int* out, int n) {{\n{body}\n}}\n'
    (folder / "tiny.cu").write_text(text)
    shutil.copy(FOLDER / "portable.cuh", folder)
    grid = Grid((blocks, 1, 1), threads, shared)
    return Launch("tiny.cu", "tiny", SIGNATURE, lambda _: grid, folder=folder)


def bodies(file: str) -> dict[str, tuple[str, str]]:
    """Those of a file of conformance/cuda, by the names before them: words behind it, and body."""
    text = (Path(cuda.__file__).parent / file).read_text()
    _, *parts = re.split(r"^// ([a-z-]+):(?: (.+))?$", text, flags=re.MULTILINE)
    return {name: (words, body) for name, words, body in zip(*[iter(parts)] * 3, strict=True)}


@dataclass(frozen=True, slots=True)
class Started:
    """A launch over an array, on a device; its result began as -1."""

    device: Emulator
    source: Buffer
    target: Buffer

    @classmethod
    def of(cls, device: Emulator, launch: Launch, x: Array) -> "Started":
        own = cls(device, upload(device, x), upload(device, np.full(len(x), -1, np.int32)))
        shape = {"n": len(x)}
        values = launch.values({"x": own.source.address, "out": own.target.address}, shape)
        device.launch(launch, launch.grid(shape), values)
        return own

    def result(self) -> Array:
        found = np.empty(self.target.bytes // 4, np.int32)
        self.device.read(self.target, found)
        return found
