"""Greedy text of an embedded model, and what a text costs it: asked of llama.cpp and the engine."""

from data.golden import FOLDER
from engine import Engine, SamplingParams
from engine.perplexity import Scorer, Text, cut

STORY = "story-f16"
PROMPTS = ("Once upon a time", "Long ago", "One foggy day, Olive found six plums beside the pond.")
TOLD = 200  # tokens
HELD_OUT = FOLDER.parent / "story" / "held_out.txt"
CONTEXT, CHUNKS = 128, 8
NEAR = 2e-4  # nats between mean costs: logits that differ by 1e-4 move a cost by twice that at most


def greedy_text(engine: Engine, prompt: str) -> list[int]:
    """The TOLD likeliest tokens, one after the other; no token ends the text."""
    params = SamplingParams(temperature=0.0, max_tokens=TOLD, ignore_eos=True)
    return [piece.token for piece in engine.stream(prompt, params)]


def held_out_text(tokens: list[int], bos: int | None) -> Text:
    """The beginning of the held-out stories, in chunks."""
    return cut(tokens, CONTEXT, bos, CHUNKS)


def losses(engine: Engine) -> list[float]:
    """Mean -ln p in nats of the tokens that count, for each chunk of the held-out stories."""
    tokenizer, scorer = engine.tokenizer, Scorer(engine)
    text = held_out_text(tokenizer.encode(HELD_OUT.read_text()), tokenizer.added_bos)
    return [float(scorer.read(passage).nll.mean()) for passage in text.passages()]
