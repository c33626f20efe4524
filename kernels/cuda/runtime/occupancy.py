"""Occupancy: how many blocks of threads a multiprocessor holds at once.

The limits are those of the CUDA C++ Programming Guide's table of compute capabilities, and the
allocation units of registers and shared memory those of NVIDIA's occupancy calculator.
"""

from dataclasses import dataclass

from kernels.cuda.runtime.launch import WARP

REGISTERS = 2**16  # of a multiprocessor
PARTITIONS = 4  # each has a scheduler, and its warps' registers are its own
REGISTER_UNIT, SHARED_UNIT = 256, 128  # allocation units: registers of a warp; bytes of a block


@dataclass(frozen=True, slots=True)
class Limits:
    """A multiprocessor's limits: `warps` and `blocks` at once, bytes of `shared` memory, of which
    each block takes `reserved` more than it requests."""

    warps: int
    blocks: int
    shared: int
    reserved: int = 1024


LIMITS = {
    75: Limits(32, 16, 64 << 10, 0),
    80: Limits(64, 32, 164 << 10),
    86: Limits(48, 16, 100 << 10),
    89: Limits(48, 24, 100 << 10),
    90: Limits(64, 32, 228 << 10),
}


def limits(capability: int) -> Limits:
    """The limits of the newest known capability up to this one."""
    return LIMITS[max(known for known in LIMITS if known <= max(capability, min(LIMITS)))]


def blocks_at_once(capability: int, threads: int, registers: int, shared: int) -> int:
    """Concurrent blocks of so many threads, with so many registers each, and bytes of shared memory
    per block; 0 if not even one fits."""
    of, warps = limits(capability), -(-threads // WARP)
    warp = -(-max(registers, 1) * WARP // REGISTER_UNIT) * REGISTER_UNIT
    by_registers = REGISTERS // PARTITIONS // warp * PARTITIONS // warps
    taken = -(-shared // SHARED_UNIT) * SHARED_UNIT + of.reserved
    by_shared = of.shared // taken if taken else of.blocks
    return min(of.blocks, of.warps // warps, by_registers, by_shared)
