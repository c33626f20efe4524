"""Tokens that an engine samples, with their logits' bits."""

from collections.abc import Sequence
from dataclasses import replace

from engine import Engine, SamplingParams
from reference.op import Array

Drawn = list[tuple[int, bytes]]


def drawn(engine: Engine, prompt: Sequence[int], params: SamplingParams) -> Drawn:
    """The sampled tokens, with the bits of the logits that they were sampled from."""
    seen: list[bytes] = []

    def note(_: list[int], logits: Array) -> Array:
        seen.append(logits.tobytes())
        return logits

    asked = replace(params, logits_processors=[note])
    tokens = [piece.token for piece in engine.stream(list(prompt), asked)]
    return list(zip(tokens, seen, strict=True))
