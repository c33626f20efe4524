"""How long a kernel takes to compile and to be certified, from nothing: measured in a child
process.

It forks for every answer, so that what one kernel compiled does not help the next.
"""

import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from numba import cfunc

from kernels.certificates import shares_of
from kernels.table import find
from kernels.trial import demanded

HOME = "bench.ops.compiling:Compiler"


class Compiler:
    """The object in the child: Numba's own start-up, which is no kernel's, is done."""

    def __init__(self) -> None:
        cfunc("void()")(lambda: None)

    def time(self, kernel: str) -> dict[str, float]:
        """Seconds by phase; RuntimeError where its trial fails, or takes the fork down."""
        with ProcessPoolExecutor(1, get_context("fork")) as fork:
            return fork.submit(_measure, kernel).result()


def _measure(name: str) -> dict[str, float]:
    """In a process and a cache that know nothing of the kernel."""
    kernel = find(name)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ASSAY_CACHE"] = folder
        shares = shares_of(kernel)
        started = time.perf_counter()
        for share in shares:
            share.compile()
        compiled = time.perf_counter()
        certificate = demanded(kernel)
        ended = time.perf_counter()
    if not certificate.passed:
        raise RuntimeError(f"{kernel.name}: {certificate.failure}")
    return {"compile": compiled - started, "certify": ended - compiled}
