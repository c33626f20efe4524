"""Make `story-long`, which recalls facts from a long tale: `python -m data.story.long`.

Trains a tokenizer, trains the model on tales (tales.py) that grow to its whole context, writes
`data/models/story-long-f16.gguf`, measures its answers by length and depth, and writes `long.json`.
Each step is reproducible; training resumes from a checkpoint in `--work`.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from platformdirs import user_cache_path
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.init import orthogonal_

from data import path
from data.story import export, tokens
from data.story.model import Llama, Shape
from data.story.tales import Fact, Tale
from data.story.train import optimisers

NAME = "story-long"

SHAPE = Shape(hidden=128, layers=3, heads=4, kv_heads=2, ffn=256, head_dim=64, context=4096,
              rope_base=1e6)  # fmt: skip
ABOUT = "Remembers what long tales told, drawn from a grammar. Trained by data/story/long.py."
SEED, MEASURED_SEED, VOCABULARY_SEED = 4, 25_002, 12
VOCABULARY_TALES, VOCABULARY_PARTS = 300, 200
TELLING = 0.2, 0.8  # range of the fraction of a text that tells facts, before it asks
WARM_UP, FALLING, NOTHING = 50, 540, 720  # learning rate: warm-up's end, decay's begin and end
CHECKPOINT_EVERY = 60.0  # seconds
LENGTHS, DEPTHS, MEASURED_TEXTS = (512, 1024, 2048, 4096), 8, 12


@dataclass(frozen=True, slots=True)
class Stage:
    """`steps` steps with `rows` rows of texts of `tokens` tokens, a fraction `stories` of whose
    parts are stories."""

    tokens: int
    rows: int
    steps: int
    stories: float


# Short texts to learn what is asked, then longer ones to find it among more.
STAGES = (
    Stage(128, 16, 100, 0.0), Stage(256, 8, 100, 0.05), Stage(1024, 2, 180, 0.1),
    Stage(1024, 2, 160, 0.03), Stage(2048, 1, 100, 0.03), Stage(4096, 1, 37, 0.05),
)  # fmt: skip


def vocabulary(file: Path) -> Tokenizer:
    """The tokenizer of tales, trained and saved to `file` if it does not exist."""

    def texts() -> Iterator[str]:
        for number in range(VOCABULARY_TALES):
            tale = Tale(np.random.default_rng([VOCABULARY_SEED, number]), 0.1)
            for turn in (tale.tell, tale.ask):
                yield from (f" {turn().text}" for _ in range(VOCABULARY_PARTS // 2))

    return tokens.vocabulary(file, texts())


def row(
    tokenizer: Tokenizer, rng: np.random.Generator, length: int, stories: float
) -> tuple[list[int], list[int]]:
    """Ids of a text, length + 1, and for each answer's colour the number of tokens since its fact,
    else 0."""
    tale, told = Tale(rng, stories), dict[Fact, int]()
    ids, since = [tokens.BEGIN_ID], [0]
    switch = length * rng.uniform(*TELLING)
    while len(ids) <= length:
        asks = bool(told) and len(ids) >= switch
        part = tale.ask() if asks else tale.tell()
        text = part.text if len(ids) == 1 else f" {part.text}"
        added = tokenizer.encode(text, add_special_tokens=False).ids
        marks = [0] * len(added)
        if part.fact and asks:
            marks[-2] = len(ids) - told[part.fact]  # the colour, before the full stop
        elif part.fact:
            told[part.fact] = len(ids)
        ids += added
        since += marks
    return ids[: length + 1], since[: length + 1]


def batch(
    tokenizer: Tokenizer, rng: np.random.Generator, length: int, rows: int, stories: float
) -> tuple[Tensor, Tensor]:
    """Rows, each (rows, length + 1)."""
    found = [row(tokenizer, rng, length, stories) for _ in range(rows)]
    return torch.tensor([ids for ids, _ in found]), torch.tensor([since for _, since in found])


@torch.no_grad()
def begin_as_induction(model: Llama) -> None:
    """Initial weights that implement induction heads (Olsson et al., arXiv 2209.11895); from random
    ones a similar model still guessed after 575 steps.

    Head h of the first block looks h + 1 tokens back: a constant in the embedding becomes queries
    and keys whose fast RoPE pairs agree at that distance. It copies what it sees there to a
    subspace of the residual stream of its own. The second block's heads compare, in the slow pairs,
    the tokens one and three before a query ("Tom's ball is") with those two and four before a key
    ("Tom's ball is red"), and the query's own token with the one before the key. All else is
    random.
    """
    shape = model.shape
    width, dim = 3 * shape.hidden // 16, shape.head_dim
    own = shape.hidden - shape.heads * width  # dimensions that only embeddings write to
    parts = [slice(own + h * width, own + (h + 1) * width) for h in range(shape.heads)]
    embedding = model.token_embd.weight
    embedding[:, own:], embedding[:, 0] = 0, 4.0  # the constant, four times as large as the others
    first, second = model.blk[0], model.blk[1]

    speeds = shape.rope_base ** -(torch.arange(0, dim, 2) / dim)
    sizes = torch.where(speeds > 0.3, 1.18, torch.where(speeds > 0.01, 0.75, 0.0))
    q = first.attn_q.weight.mul_(0.3).view(shape.heads, dim // 2, 2, -1)
    k = first.attn_k.weight.mul_(0.3).view(shape.kv_heads, dim // 2, 2, -1)
    k[:, :, 0, 0], k[:, :, 1, 0] = sizes, 0
    for h in range(shape.heads):
        q[h, :, 0, 0] = sizes * torch.cos(speeds * (h + 1))
        q[h, :, 1, 0] = -sizes * torch.sin(speeds * (h + 1))
    v = first.attn_v.weight.view(shape.kv_heads, dim, -1)
    out = first.attn_output.weight.view(-1, shape.heads, dim)
    seen = orthogonal_(torch.empty(width, own - 1))
    v[:, :width], out[own:] = 0, 0
    v[:, :width, 1:own] = seen
    for h, part in enumerate(parts):
        out[part, h, :width] = 1.5 * torch.eye(width)
    first.ffn_down.weight[own:] = 0

    q = second.attn_q.weight.mul_(0.1).view(shape.heads, dim, -1)
    k = second.attn_k.weight.mul_(0.1).view(shape.kv_heads, dim, -1)
    third, group = dim // 6, shape.heads // shape.kv_heads
    for h in range(shape.kv_heads):
        mine = slice(h * group, (h + 1) * group)
        for n, (near, far) in enumerate(((None, 0), (0, 1), (2, 3))):
            rows = slice(dim // 2 + n * third, dim // 2 + (n + 1) * third)
            same = orthogonal_(torch.empty(third, width), gain=3.0)
            k[h, rows, parts[far]] = same
            if near is None:
                q[mine, rows, 1:own] = 2.5 * same @ seen  # as large as the other heads' inputs
            else:
                q[mine, rows, parts[near]] = same


def train(tokenizer: Tokenizer, checkpoint: Path) -> tuple[Llama, float]:
    """The model after all stages, and the seconds they took."""
    torch.manual_seed(SEED)
    model = Llama(SHAPE)
    begin_as_induction(model)
    both = optimisers(model)
    peaks = [each.param_groups[0]["lr"] for each in both]
    done, seconds = 0, 0.0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        for each, state in zip(both, saved["optimisers"], strict=True):
            each.load_state_dict(state)
        done, seconds = saved["steps"], saved["seconds"]
    stages = [stage for stage in STAGES for _ in range(stage.steps)]
    last = time.monotonic()
    saved_at = seconds
    for step in range(done, len(stages)):
        stage = stages[step]
        rng = np.random.default_rng([SEED, step])
        answers, others = losses(
            model, *batch(tokenizer, rng, stage.tokens, stage.rows, stage.stories)
        )
        model.zero_grad()
        (answers + others).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rate = min((step + 1) / WARM_UP, 1.0, (NOTHING - step) / (NOTHING - FALLING))
        for each, peak in zip(both, peaks, strict=True):
            each.param_groups[0]["lr"] = peak * rate
            each.step()
        now = time.monotonic()
        seconds, last = seconds + now - last, now
        if step % 20 == 19:
            print(f"{seconds:.0f} s, step {step + 1} of {len(stages)}, {stage.tokens} tokens: nats"
                  f" an answer {answers.item():.3f}, else a token {others.item():.3f}")  # fmt: skip
        if seconds - saved_at > CHECKPOINT_EVERY or step + 1 == len(stages):
            states = [each.state_dict() for each in both]
            part = checkpoint.with_suffix(".part")
            torch.save({"model": model.state_dict(), "optimisers": states, "steps": step + 1,
                        "seconds": seconds}, part)  # fmt: skip
            part.replace(checkpoint)
            saved_at = seconds
    return model, seconds


def losses(model: Llama, ids: Tensor, since: Tensor) -> tuple[Tensor, Tensor]:
    """Mean loss (nats) of the colours in answers, and of all other tokens. Both have the same
    weight, though the others are twenty times as many; matrix products are in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model.losses(ids[:, :-1], ids[:, 1:])
    answers = since[:, 1:].flatten() > 0
    return found[answers].mean(), found[~answers].mean()


@torch.inference_mode()
def recall(model: Llama, tokenizer: Tokenizer, length: int) -> dict[str, Any]:
    """For texts of this many tokens: the fraction of answers whose colour is the likeliest token,
    overall and by the distance of its fact, in eighths of the text; the mean loss of other tokens
    (nats)."""
    rng = np.random.default_rng([MEASURED_SEED, length])
    right, places, nats = list[Tensor](), list[Tensor](), list[Tensor]()
    for _ in range(MEASURED_TEXTS):
        ids, since = batch(tokenizer, rng, length, 1, STAGES[-1].stories)
        logits, wanted, since = model(ids[:, :-1])[0], ids[0, 1:], since[0, 1:]
        answers = since > 0
        right.append((logits.argmax(-1) == wanted)[answers])
        places.append(since[answers] * DEPTHS // length)
        nats.append(cross_entropy(logits[~answers], wanted[~answers], reduction="none"))
    hits, eighths = torch.cat(right).double(), torch.cat(places)
    by_place = {n: hits[eighths == n] for n in range(DEPTHS)}
    return {
        "answers": len(hits),
        "right": float(hits.mean()),
        "right_by_eighths_back": [
            float(some.mean()) if len(some) else None for some in by_place.values()
        ],
        "nats_per_other_token": float(torch.cat(nats).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m data.story.long")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, default=user_cache_path("assay") / NAME,
                        help="where vocabulary and checkpoint are kept (%(default)s)")  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)
    tokenizer = vocabulary(options.work / "tokenizer.json")
    model, seconds = train(tokenizer, options.work / "checkpoint.pt")
    file = path(f"models/{NAME}-f16.gguf")
    export.write(file, model.eval(), tokenizer, export.Type.F16, "Assay Story Long F16", ABOUT)
    stored = export.read(file, SHAPE)
    facts = {
        "made_by": "python -m data.story.long",
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "bytes": file.stat().st_size,
        "shape": vars(SHAPE),
        "trained": {
            "seconds": round(seconds),
            "threads": options.threads,
            "steps": sum(stage.steps for stage in STAGES),
            "tokens": sum(stage.steps * stage.rows * stage.tokens for stage in STAGES),
        },
        "recall": {str(length): recall(stored, tokenizer, length) for length in LENGTHS},
    }
    path("story/long.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts, indent=2))


if __name__ == "__main__":
    main()
