"""The engine on a GPU beside the engine on the CPU, and how fast it decodes.

Run as a program (`python -m bench.cuda.engine MODEL ...`) it compares logits: a line a model, and
exit status 1 if they are too far apart.
"""

import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.cuda.clock import Ceilings
from bench.race.results import Measurement

if TYPE_CHECKING:
    from engine import Engine

Logits = np.ndarray[Any, np.dtype[np.float64]]

TEXT = "Once upon a time there was"
MODELS = ("story", "story-relu")
ALLOWED = 2**-6  # of the farthest logit: an activation may be rounded to the other side
TOKENS = 64
ROUNDS = 5


def agreement(model: str) -> tuple[str, bool]:
    """Of the same prompt on both, as `compared` has it."""
    from engine import Engine

    found = []
    for device in ("cpu", "cuda"):
        with Engine.load(model, device=device) as engine:
            found.append(engine.logits(TEXT).astype(np.float64))
            left = on_cpu(engine) if device == "cuda" else ""
    line, near = compared(model, *found)
    return (f"{line}; {left}", False) if left else (line, near)


def on_cpu(engine: "Engine") -> str:
    """Which part of the model stays on the CPU, and why; "" if none."""
    return next((note for note in engine.model.notes if "on the CPU" in note), "")


def compared(model: str, cpu: Logits, gpu: Logits) -> tuple[str, bool]:
    """Of logits [tokens, vocab] of either: in a line the largest difference, how far logits reach,
    and of how many tokens the likeliest next one differs; and whether they are near enough."""
    off, reach = float(np.abs(cpu - gpu).max()), float(np.abs(cpu).max())
    differ = int((cpu.argmax(axis=1) != gpu.argmax(axis=1)).sum())
    line = (
        f"{model}: logits differ by {off:.2g} at most, of {reach:.3g};"
        f" {differ} of {len(cpu)} tokens have another likeliest one"
    )
    return line, off <= ALLOWED * reach  # NaN is not


def decoding(path: Path, ceilings: Ceilings, row: Measurement) -> Measurement:
    """The row with seconds a token of greedy generations with a model."""
    from engine import Engine, SamplingParams
    from engine.gguf.file import GGUFFile

    wanted = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    samples = []
    with Engine.load(path, device="cuda") as engine:
        if left := on_cpu(engine):
            raise LookupError(left)
        for _ in range(ROUNDS + 1):  # the first of them captures its graph
            engine.reset()
            pieces = engine.stream(TEXT, wanted)
            next(pieces)  # reads the prompt
            begun = time.perf_counter()  # sampling included, which overlaps with the next step
            count = sum(1 for _ in pieces)
            samples.append((time.perf_counter() - begun) / count)
    of_format: Counter[str] = Counter()
    for tensor in GGUFFile(path).tensors.values():
        of_format[tensor.type_name] += tensor.n_bytes
    total, kind = float(of_format.total()), of_format.most_common(1)[0][0]
    row = replace(row, tokens=1, cache="cold", format=kind, samples=tuple(samples[1:]), bytes=total)
    return ceilings.limit(total, 0).of(row)


def main() -> int:
    wrong = 0
    for model in sys.argv[1:]:
        line, fine = agreement(model)
        print(line, flush=True)
        wrong += not fine
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
