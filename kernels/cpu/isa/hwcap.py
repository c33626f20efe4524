"""What an AArch64 CPU can, by the words of bits in which Linux tells each process.

LLVM reads the names in /proc/cpuinfo, knows few of them, and takes the rest from the model of CPU:
of one it does not know, it would compile neither dots nor anything else that is not in every CPU,
and of one it knows what a system or an emulator has taken away.
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
    """Whether this CPU has each of these features, by LLVM's names; none where no system says."""
    if sys.platform != "linux":
        return {}
    told = ctypes.CDLL(None).getauxval
    told.argtypes, told.restype = [ctypes.c_ulong], ctypes.c_ulong
    return features({kind: told(kind) for kind in BITS})


def features(words: dict[int, int]) -> dict[str, bool]:
    """The same of words of bits."""
    return {
        name: bool(words[kind] >> bit & 1)
        for kind, names in BITS.items()
        for bit, name in names.items()
    }
