"""Quality of a story model: held-out perplexity against the lower bound, errors in stories."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

from data.story.check import START, violations
from data.story.grammar import Story, derivations, entropy, sample
from data.story.model import Llama, Past
from data.story.tokens import BEGIN_ID, END_ID, IGNORE, encode

HELD_OUT_SEED, HELD_OUT_STORIES = 20_001, 200
LENGTH_SEED, LENGTH_STORIES = 20_002, 20_000
GENERATED_SEED, GENERATED_STORIES = 20_003, 500
BATCH = 50  # stories


@dataclass(frozen=True)
class Floor:
    """The lower bound of any model's loss: on the held-out stories, and on average."""

    held_out_tokens: int  # every token after BEGIN, END included
    held_out_nats: float
    tokens_per_story: float  # mean over sampled stories, END included
    nats_per_story: float

    @property
    def perplexity(self) -> float:
        """Per token of the held-out stories."""
        return float(np.exp(self.held_out_nats / self.held_out_tokens))

    @property
    def nats_per_token(self) -> float:
        return self.nats_per_story / self.tokens_per_story


def held_out() -> list[Story]:
    """Stories that training never samples, by a seed of their own."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    return [sample(rng) for _ in range(HELD_OUT_STORIES)]


def floor(tokenizer: Tokenizer) -> Floor:
    stories = held_out()
    rng = np.random.default_rng(LENGTH_SEED)
    lengths = [len(encode(tokenizer, sample(rng).text)) - 1 for _ in range(LENGTH_STORIES)]
    return Floor(
        held_out_tokens=sum(len(encode(tokenizer, story.text)) - 1 for story in stories),
        held_out_nats=-sum(story.log_probability for story in stories),
        tokens_per_story=float(np.mean(lengths)),
        nats_per_story=entropy(),
    )


@torch.inference_mode()
def perplexity(model: Llama, tokenizer: Tokenizer, texts: list[str]) -> float:
    """exp of the mean loss over every token after BEGIN, each story read on its own, in f32."""
    total, count = 0.0, 0
    stories = sorted((encode(tokenizer, text) for text in texts), key=len)
    for start in range(0, len(stories), BATCH):
        batch = stories[start : start + BATCH]
        ids = torch.full((len(batch), len(batch[-1])), IGNORE)
        for row, story in zip(ids, batch, strict=True):
            row[: len(story)] = torch.tensor(story)
        wanted = ids[:, 1:]
        total += float(model.losses(ids[:, :-1].clamp(min=0), wanted).double().sum())
        count += int((wanted != IGNORE).sum())
    return float(np.exp(total / count))


@torch.inference_mode()
def tell(model: Llama, tokenizer: Tokenizer, rows: int, seed: int, start: str = "") -> list[str]:
    """Sample stories from the model at temperature 1, none longer than its context."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.tensor([encode(tokenizer, start)[:-1]]).repeat(rows, 1)
    ended = torch.zeros(rows, dtype=torch.bool)
    pasts: list[Past] = [{} for _ in model.blk]
    read = 0
    while not ended.all() and ids.shape[1] < model.shape.context:
        odds = model(ids[:, read:], read, pasts)[:, -1].softmax(dim=-1)
        read = ids.shape[1]
        drawn = torch.multinomial(odds, 1, generator=generator)[:, 0].where(~ended, END_ID)
        ids = torch.cat((ids, drawn[:, None]), dim=1)
        ended |= drawn == END_ID
    assert (ids[:, 0] == BEGIN_ID).all()
    return [tokenizer.decode(row.tolist(), skip_special_tokens=True) for row in ids]


def judge(texts: list[str]) -> dict[str, float]:
    """Fractions of stories (0 to 1) without errors, for each kind and for all kinds together."""
    kinds = Counter[str]()
    for text in texts:
        kinds.update({line.split(":")[0] for line in violations(text)})
    stories = len(texts)
    counting = [text for text in texts if START.search(text)]
    miscounted = sum(any(line.startswith("count:") for line in violations(t)) for t in counting)
    return {
        "stories": stories,
        "without_violation": sum(not violations(text) for text in texts) / stories,
        **{f"{k}_right": 1 - kinds[k] / stories for k in ("pronoun", "kind", "count", "memory")},
        "stories_that_count": len(counting),
        "count_right_where_counted": 1 - miscounted / len(counting),
        "grammar_can_write_it": sum(len(derivations(text)) == 1 for text in texts) / stories,
    }


def generated(model: Llama, tokenizer: Tokenizer) -> list[str]:
    return [
        text
        for first in range(0, GENERATED_STORIES, BATCH)
        for text in tell(model, tokenizer, BATCH, GENERATED_SEED + first)
    ]
