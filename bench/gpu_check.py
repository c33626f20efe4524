"""One command for a machine with a GPU: every CUDA kernel before the judge, and how fast they are.

    python -m bench.gpu_check [-o FOLDER] [--minutes 7.5] [--model SHAPE=FILE.gguf ...]

In under eight minutes it compiles all kernels, judges each on its op's quick cases and on random
ones, runs some under compute-sanitizer, compares the engine's logits with the CPU's, and measures:
products of Llama-2-7B for one token and for 2,048, attention at 32,768 cells, PowerInfer's ops, and
the kernels of whole decoding steps, beside what the GPU allows and beside peers. With --model the
engine decodes with the file, whose shape is one of data/shapes.toml.

It needs NumPy, Numba and CuPy; what else is missing costs only the part that needs it, and is said.
FOLDER gets a log, certificates and measurements as JSON lines. Exit status: 0 done, 1 no GPU or
something that failed, 2 wrong usage.
"""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernels.cuda.gpu import Gpu

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
    parser.add_argument("-o", "--out", type=Path, default=Path("gpu-check"), metavar="FOLDER")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--model", action="append", default=[], metavar="SHAPE=FILE")
    return parser


def lacking(names: Sequence[str]) -> list[str]:
    """Those of these packages that are not here."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def gpu_here() -> "Gpu | str":
    """The GPU, or in a line why there is none."""
    if missing := lacking(NEEDED):
        return f"no GPU can be used without {' and '.join(missing)}"
    from kernels.cuda.device import DeviceError
    from kernels.cuda.gpu import Gpu

    try:
        return Gpu()
    except DeviceError as error:
        return str(error)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options()
    chosen = parser.parse_args(arguments)
    models = [word.partition("=") for word in chosen.model]
    if wrong := [name for name, equals, _ in models if not equals]:
        parser.error(f"--model is SHAPE=FILE, got {wrong[0]!r}")
    os.environ.setdefault("ASSAY_CACHE", str(chosen.out.absolute() / "cache"))
    gpu = gpu_here()
    if isinstance(gpu, str):
        print(f"gpu-check: {gpu}", file=sys.stderr)
        return 1
    from bench.cuda.check import Check, Log
    from bench.cuda.parts import run

    chosen.out.mkdir(parents=True, exist_ok=True)
    with (chosen.out / "gpu-check.log").open("w") as file:
        check = Check(gpu, chosen.out, Log(file), chosen.minutes * 60)
        for name in lacking(tuple(OPTIONAL)):
            check.say(f"without {name}: {OPTIONAL[name]}")
        run(check, {name: Path(path) for name, _, path in models})
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
