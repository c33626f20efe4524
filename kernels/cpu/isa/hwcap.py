"""CPU features of AArch64, from the hardware capability words that Linux gives each process.

LLVM reads the names in /proc/cpuinfo, knows few of them, and derives the rest from the CPU's model:
for an unknown one it would use no feature beyond the baseline, and for a known one also those that
a system or an emulator has disabled.
"""

import ctypes
import sys

# LLVM's names, by the word (AT_HWCAP or AT_HWCAP2 of the auxiliary vector) and the bit in it:
# arch/arm64/include/uapi/asm/hwcap.h of Linux.
AT_HWCAP, AT_HWCAP2 = 16, 26
BITS = {
    AT_HWCAP: {
        1: "neon", 7: "crc", 8: "lse", 10: "fullfp16", 12: "rdm", 15: "rcpc", 20: "dotprod",
        22: "sve", 23: "fp16fml",
    },
    AT_HWCAP2: {1: "sve2", 13: "i8mm", 14: "bf16"},
}  # fmt: skip


def probed() -> dict[str, bool]:
    """Whether this CPU has each of these features, by LLVM's names; none where the system does not
    tell."""
    if sys.platform != "linux":
        return {}
    told = ctypes.CDLL(None).getauxval
    told.argtypes, told.restype = [ctypes.c_ulong], ctypes.c_ulong
    return features({kind: told(kind) for kind in BITS})


def features(words: dict[int, int]) -> dict[str, bool]:
    """The same from these words."""
    return {
        name: bool(words[kind] >> bit & 1)
        for kind, names in BITS.items()
        for bit, name in names.items()
    }
