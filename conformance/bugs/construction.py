"""The rules of kernels/cpu/runtime/construction.py, for the assembly that a C compiler makes."""

import re

from kernels.cpu.runtime.construction import CALLS

_INSTRUCTIONS = re.compile(
    r"^\s+(v?ldmxcsr|fldcw|fldenv|frstor|f?xrstor\w*|rdtscp?|rdpmc|rdrand|rdseed|rdpid|cpuid|xgetbv"
    r"|syscall|sysenter|int|std|in|out)\b",
    re.M,
)
_WRITABLE = re.compile(
    r"^\s+(\.l?comm\b|\.(?:section\s+)?\.?t?(?:data|bss)\b(?!\.rel\.ro).*)", re.M
)
_NAMED = re.compile(r"\b(\w+)@(?:PLT|GOT\w*|got\w*|tls\w*)")


def complaint_about(assembly: str) -> str:
    """What in a share's assembly is not allowed; "" if nothing is."""
    if found := _WRITABLE.search(assembly):
        return f"has memory that lasts from call to call: {' '.join(found[1].split())}"
    for name in _NAMED.findall(assembly):
        if name not in CALLS and name != "share":
            return f"calls {name}"
    if found := _INSTRUCTIONS.search(assembly):
        return f"runs {found[1]}"
    if found := re.search(r"%[fg]s:", assembly):
        return "reads memory of the thread"
    if found := re.search(r"^\s+call\s+\*.*", assembly, re.M):
        return f"calls an address: {' '.join(found[0].split())}"
    return ""
