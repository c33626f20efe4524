"""One command for a machine with a GPU: every CUDA kernel before the judge, and how fast they are.

    python -m bench.gpu_check [-o FOLDER] [--minutes 7.5] [--model SHAPE=FILE.gguf ... | --knobs]

In under eight minutes it compiles all kernels, judges each on its op's quick cases and on random
ones, runs some under compute-sanitizer, compares the engine's logits with the CPU's, and measures:
products of Llama-2-7B for one token and for 2,048, attention at 32,768 cells, PowerInfer's ops, and
the kernels of whole decoding steps, beside what the GPU allows and beside peers. With --model the
engine decodes with the file, whose shape is one of data/shapes.toml. With --knobs it does something
else: it measures each other value of our kernels' knobs, which have to give the same bits, in turns
with the defaults, and says which are faster.

It needs NumPy, Numba and CuPy; what else is missing costs only the part that needs it, and is said.
FOLDER gets a log, certificates and measurements as JSON lines: three files. By default it is
gpu-check in ASSAY_RESULTS, or where this is run. What is compiled goes into ASSAY_CACHE, by default
gpu-check-cache where this is run. Exit status: 0 done, 1 no GPU or something that failed, 2 wrong
usage.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.packages import lacking

if TYPE_CHECKING:
    from kernels.cuda.runtime.device import Device

NEEDED = ("numpy", "numba", "cupy")
OPTIONAL = {
    "torch": "PyTorch is no peer",
    "triton": "Triton is no peer",
    "gguf": "the engine is not run",
    "tokenizers": "the engine is not run",
}
MINUTES = 7.5


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gpu-check", description=(__doc__ or "").splitlines()[0])
    default = Path(os.environ.get("ASSAY_RESULTS", ""), "gpu-check")
    parser.add_argument("-o", "--out", type=Path, default=default, metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--model", action="append", default=[], metavar="SHAPE=FILE")
    what.add_argument("--knobs", action="store_true")
    return parser


def settle() -> None:
    """Prepare the environment of this process and its children, before NumPy and CuPy are imported:
    writable caches, since CuPy cannot be imported without its own, and one thread for each
    reference, since eight of them are computed at a time."""
    cache = Path(os.environ.setdefault("ASSAY_CACHE", str(Path("gpu-check-cache").absolute())))
    try:
        (Path.home() / ".cupy").mkdir(exist_ok=True)
    except (OSError, RuntimeError):  # a home that is read-only, or none
        os.environ.setdefault("CUPY_CACHE_DIR", str(cache / "cupy"))
        os.environ.setdefault("TRITON_CACHE_DIR", str(cache / "triton"))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def gpu_here() -> "Device | str":
    """The GPU, or one line why there is none."""
    if missing := lacking(NEEDED):
        return f"no GPU can be used without {' and '.join(missing)}"
    settle()
    try:
        from kernels.cuda.runtime.current import current
        from kernels.cuda.runtime.device import DeviceError
    except ImportError as error:  # incompatible versions
        return f"no GPU can be used: {str(error).strip().splitlines()[0]}"
    try:
        return current()
    except DeviceError as error:
        return str(error)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options()
    chosen = parser.parse_args(arguments)
    models = [word.partition("=") for word in chosen.model]
    if wrong := [name for name, equals, _ in models if not equals]:
        parser.error(f"--model is SHAPE=FILE, got {wrong[0]!r}")
    begun = time.monotonic()
    gpu = gpu_here()
    if isinstance(gpu, str):
        print(f"gpu-check: {gpu}", file=sys.stderr)
        return 1
    from bench.cuda.parts import Check, Log, run

    try:
        chosen.out.mkdir(parents=True, exist_ok=True)
        log = (chosen.out / "gpu-check.log").open("w")
    except OSError as error:
        print(f"gpu-check: {chosen.out} cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    with log as file:
        check = Check(gpu, chosen.out, Log(file, begun), chosen.minutes * 60)
        check.say(f"everything goes into {chosen.out.absolute()}")
        for name in lacking(tuple(OPTIONAL)):
            check.say(f"without {name}: {OPTIONAL[name]}")
        run(check, None if chosen.knobs else {name: Path(path) for name, _, path in models})
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
