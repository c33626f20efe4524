"""Tokens that an engine samples, with the bits of their logits."""

from collections.abc import Sequence
from dataclasses import replace

from engine import Engine, SamplingParams
from reference.op import Array

Sampled = list[tuple[int, bytes]]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def sampled(engine: Engine, prompt: Sequence[int], params: SamplingParams = GREEDY) -> Sampled:
    """The sampled tokens, with the bits of the logits that they were sampled from."""
    seen: list[bytes] = []

    def note(_: list[int], logits: Array) -> Array:
        seen.append(logits.tobytes())
        return logits

    noting = replace(params, logits_processors=[note])
    tokens = [piece.token for piece in engine.stream(list(prompt), noting)]
    return list(zip(tokens, seen, strict=True))
