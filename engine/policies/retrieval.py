"""Measure which heads of a model are retrieval heads, for DuoAttention.

The paper trains a number for each head, so that hidden states are preserved when the other heads
stream. Here a head's number is the share of its attention outside of a streaming head's window.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from engine.engine import Engine
from engine.errors import ModelError
from engine.generation.timings import Span
from engine.policies.snapkv import SnapKV
from reference.op import Array


def alphas(
    path: str | Path,
    prompts: Sequence[Sequence[int]],
    sinks: int = 128,
    recent: int = 256,
    observers: int = 32,
    threads: int = 0,
) -> Array:
    """float64 [blocks, kv_heads]: the share of the attention of a prompt's last `observers` tokens
    that goes to cells after the first `sinks` and before the `recent` ones of any of them; averaged
    over prompts and over query heads of a group. Raises `ModelError` for prompts that are too
    short."""
    found, longest = list[Array](), max(map(len, prompts), default=0)
    watching = SnapKV(capacity=longest + 1, window=observers, kernel=1)  # evicts nothing
    with Engine.load(
        path, context=longest + 2, threads=threads, sequences=1, kv_policy=watching
    ) as engine:
        memory, config = engine.model.memory, engine.model.config
        for prompt in prompts:
            end = len(prompt) - observers - recent + 1
            if end <= sinks:
                raise ModelError(
                    f"a prompt has {len(prompt)} tokens: streaming heads would see all of it, want"
                    f" more than {sinks + recent + observers - 1}"
                )
            engine.text.clear()
            engine.text.prefill(prompt, Span())
            received = [memory[f"blk.{i}.received"][0] for i in range(config.blocks)]
            given = observers * config.heads / config.kv_heads
            found.append(np.array([own[:, sinks:end].sum(axis=1) / given for own in received]))
    return np.asarray(np.mean(found, axis=0))


def write(path: str | Path, numbers: Array) -> None:
    """Write a file in the authors' format, for DuoAttention's `heads`."""
    np.savetxt(path, numbers, fmt="%.6g", delimiter="\t")
