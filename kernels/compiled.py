"""Machine code that a child process makes, for a process whose memory is counted: LLVM takes a
hundred megabytes and more, and few of them come back. What the child keeps on disk is only loaded.

Run as a program (`python -m kernels.compiled`) it is that child: it reads kernel names from
standard input, and compiles their shares and those of SERVICES.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator

from kernels.child import environment
from kernels.cpu import sequence, streaming, team
from kernels.cpu.readers import SHARES as OF_READERS
from kernels.cpu.share import Share
from kernels.kernel import Kernel
from kernels.table import find

PATIENCE = 600.0  # seconds after which a child is given up
# What runs beside kernels, in an engine that reads its weights from disk.
SERVICES = (
    team.lead, team.follow, sequence.in_turn, *OF_READERS,
    streaming.turn, streaming.fetch, streaming.arrive,
)  # fmt: skip


def compile_apart(kernels: Iterable[Kernel] = ()) -> None:
    """Have a child compile what is not on disk of these kernels and of SERVICES. What it fails to
    do is compiled where it is needed."""
    wanted = list(kernels)
    if all(share.is_kept for share in _shares(wanted)):
        return
    try:
        subprocess.run(
            [sys.executable, "-P", "-m", __name__],
            input="\n".join(kernel.name for kernel in wanted),
            text=True,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            env=environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return


def _shares(kernels: Iterable[Kernel]) -> Iterator[Share]:
    """All that runs of these kernels, their packing among it, and SERVICES."""
    yield from SERVICES
    for kernel in kernels:
        yield from kernel.shares
        if kernel.pack:
            yield kernel.pack.share


def main() -> None:
    for share in _shares(find(line.strip()) for line in sys.stdin):
        share.compile()


if __name__ == "__main__":
    main()
