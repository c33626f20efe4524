"""How well a model predicts a text, and how far it is from another: llama.cpp's method.

>>> tokens = engine.tokenizer.encode(words)
>>> scorer, tally = Scorer(engine), Tally()
>>> for passage in cut(tokens, context=512, bos=engine.tokenizer.added_bos).passages():
...     tally.add(scorer.read(passage))
>>> tally.perplexity().perplexity
Estimate(value=1.62, error=0.03)
"""

from engine.perplexity.logits_file import LogitsFile, writing
from engine.perplexity.scores import Coded, Scorer, Scores
from engine.perplexity.statistics import Comparison, Estimate, Perplexity, Tally
from engine.perplexity.text import Passage, PerplexityError, Text, cut

__all__ = [
    "Coded",
    "Comparison",
    "Estimate",
    "LogitsFile",
    "Passage",
    "Perplexity",
    "PerplexityError",
    "Scorer",
    "Scores",
    "Tally",
    "Text",
    "cut",
    "writing",
]
