"""Greedy text of an embedded model: what is asked of llama.cpp and of the engine."""

from engine import Engine, SamplingParams

STORY = "story-f16"
PROMPTS = ("Once upon a time", "One rainy day, a little fox", "The end of the road was")
TOLD = 200  # tokens


def tell(engine: Engine, prompt: str) -> list[int]:
    """The TOLD likeliest tokens, one after the other; no token ends the text."""
    params = SamplingParams(temperature=0.0, max_tokens=TOLD, ignore_eos=True)
    return [piece.token for piece in engine.generate(prompt, params)]
