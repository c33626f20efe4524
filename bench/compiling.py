"""How long a kernel takes to compile and to be certified, from nothing: a child process is asked.

For every answer it forks, so that what was compiled for one kernel does not help the next.
"""

import json
import os
import tempfile
import time
from typing import Any

from numba import cfunc

from bench.child import Child, serve
from kernels.cpu import quantise_activations
from kernels.kernel import Kernel
from kernels.table import find
from kernels.trial import demanded

PHASES = ("compile", "certify")


class Compiler:
    """The parent's side; `time(kernel)` gives seconds by phase."""

    def __init__(self) -> None:
        self._child = Child("bench.compiling")

    def time(self, kernel: Kernel) -> dict[str, float]:
        answer = self._child.ask({"kernel": kernel.name})
        return {phase: float(answer[phase]) for phase in PHASES}

    def close(self) -> None:
        self._child.close()


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            told = json.dumps(_measure(find(question["kernel"])))
        except BaseException as error:
            told = json.dumps({"error": f"{type(error).__name__}: {error}"})
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        text = answers.read()
    _, status = os.waitpid(pid, 0)
    if not text:
        return {"error": f"{question['kernel']}: its trial ended with status {status}"}
    return dict(json.loads(text))


def _measure(kernel: Kernel) -> dict[str, float]:
    """In a process and a cache that know nothing of the kernel."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ASSAY_CACHE"] = folder
        shares = [kernel.share]
        if kernel.pack:
            shares.append(kernel.pack.share)
        if kernel.activations == "int8":
            shares.append(quantise_activations.generic)
        started = time.perf_counter()
        for share in shares:
            share.compile()
        compiled = time.perf_counter()
        certificate = demanded(kernel)
        ended = time.perf_counter()
    if not certificate.passed:
        raise RuntimeError(f"{kernel.name}: {certificate.failure}")
    return {"compile": compiled - started, "certify": ended - compiled}


def main() -> None:
    cfunc("void()")(lambda: None)  # Numba's own start is no kernel's
    serve(_answer)


if __name__ == "__main__":
    main()
