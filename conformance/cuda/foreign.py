"""Compile a user's CUDA kernel for the emulator: a program that `kernels.foreign.cuda` starts.

`python -m conformance.cuda.foreign FILE FUNCTION TYPE...` prints the paths of the emulator's and
the kernel's libraries as JSON. A file without `#include "portable.cuh"` gets it implicitly.
"""

import json
import sys
from pathlib import Path

from conformance.cuda.emulator import host_library, library
from kernels.cuda.runtime.launch import Launch, items
from kernels.errors import KernelError


def main() -> int:
    """Print the paths to standard output, or the compiler's error with exit status 1."""
    file, function, *kinds = sys.argv[1:]
    path = Path(file)
    launch = Launch(path.name, function, "x: f32[n] -> out: f32[n]", items(), folder=path.parent)
    try:
        made = {"host": str(host_library()), "library": str(library(launch, kinds))}
    except (KernelError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
