"""How long a kernel takes to compile and to be certified, from nothing: measured in a child
process.

It forks for every answer, so that what one kernel compiled does not help the next.
"""

import json
import os
import tempfile
import time

from numba import cfunc

from kernels.certificates import shares_of
from kernels.kernel import Kernel
from kernels.table import find
from kernels.trial import demanded

HOME = "bench.ops.compiling:Compiler"


class Compiler:
    """The object in the child: Numba's own start-up, which is no kernel's, is done."""

    def __init__(self) -> None:
        cfunc("void()")(lambda: None)

    def time(self, kernel: str) -> dict[str, float]:
        """Seconds by phase."""
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                told = json.dumps(_measure(find(kernel)))
            except BaseException as error:
                told = json.dumps({"error": f"{type(error).__name__}: {error}"})
            os.write(writing, told.encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answers:
            text = answers.read()
        _, status = os.waitpid(pid, 0)
        found = json.loads(text or "{}")
        if "compile" not in found:
            why = found.get("error", f"its trial ended with status {status}")
            raise RuntimeError(f"{kernel}: {why}")
        return dict(found)


def _measure(kernel: Kernel) -> dict[str, float]:
    """In a process and a cache that know nothing of the kernel."""
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
