"""Compiles machine code in child processes: for a process whose memory is limited, since LLVM takes
a hundred megabytes and more and returns little of it; or to compile several kernels in parallel.
The parent only loads what children stored on disk.

As a program (`python -m kernels.compiled`) it is such a child: it reads names of kernels from
standard input and compiles all that they run, and with the argument "services" SERVICES too.
"""

import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from kernels.cache import ready
from kernels.certificates import shares_of
from kernels.child import begin, environment, leave
from kernels.cpu.runtime import sequence, streaming, team
from kernels.cpu.runtime.cores import allowed_cores
from kernels.cpu.runtime.io_pool import SHARES as OF_READERS
from kernels.cpu.runtime.share import Share
from kernels.kernel import Kernel
from kernels.table import find

PATIENCE = 600.0  # seconds after which a child is given up
PROGRAM = (sys.executable, "-P", "-m", "kernels.compiled")
# What an engine runs beside kernels when it reads its weights from disk.
SERVICES = (
    team.lead, team.follow, sequence.in_turn, *OF_READERS,
    streaming.turn, streaming.fetch, streaming.arrive,
)  # fmt: skip


def compile_apart(kernels: Iterable[Kernel] = ()) -> None:
    """Have a child compile what is not on disk of these kernels and of SERVICES. What it fails to
    compile is compiled where it is used."""
    wanted = list(kernels)
    if all(share.is_kept for share in (*SERVICES, *_shares(wanted))):
        return
    try:
        subprocess.run(
            [*PROGRAM, "services"],
            input="\n".join(kernel.name for kernel in wanted),
            text=True,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            env=environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return


@contextmanager
def compiling(kernels: Sequence[Kernel]) -> Iterator[None]:
    """Context in which children, as many as there are cores, compile what is not on disk of these
    kernels; on exit it is all there. What they fail to compile is compiled where it is used."""
    ready()  # or a temporary folder would belong to a child
    wanted = [k.name for k in kernels if not all(share.is_kept for share in _shares([k]))]
    count = min(len(wanted), len(allowed_cores()))
    children: list[subprocess.Popen[str]] = []
    try:
        for i in range(count):
            child = subprocess.Popen(
                PROGRAM,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment(),
            )
            children.append(child)
            assert child.stdin is not None
            with suppress(BrokenPipeError), child.stdin as names:
                names.write("\n".join(wanted[i::count]))
        yield
        with suppress(subprocess.TimeoutExpired):
            for child in children:
                child.wait(PATIENCE)
    finally:
        for child in children:
            child.kill()
            child.wait()


def _shares(kernels: Iterable[Kernel]) -> Iterator[Share]:
    """Everything these kernels run, packers and rounding of activations included."""
    for kernel in kernels:
        yield from shares_of(kernel)


def main() -> None:
    kernels = [find(line.strip()) for line in sys.stdin]
    for share in (*(SERVICES if sys.argv[1:] else ()), *_shares(kernels)):
        share.compile()
    leave()


if __name__ == "__main__":
    begin(main)
