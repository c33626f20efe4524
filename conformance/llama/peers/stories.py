"""Greedy text of an embedded model: what is asked of llama.cpp and of the engine."""

from engine import Engine, SamplingParams

STORY = "story-f16"
PROMPTS = (
    "Once upon a time",
    "Long ago",
    "One foggy day, Olive found six plums beside the pond.",
)
TOLD = 200  # tokens


def tell(engine: Engine, prompt: str) -> list[int]:
    """The TOLD likeliest tokens, one after the other; no token ends the text."""
    params = SamplingParams(temperature=0.0, max_tokens=TOLD, ignore_eos=True)
    return [piece.token for piece in engine.generate(prompt, params)]
