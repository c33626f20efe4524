"""Make the story models, their held-out text and their facts: `python -m data.story.make`.

Trains a tokenizer, trains a model, its draft and its ReLU variant for a fixed time, makes a sparse
model of the latter, exports them to `data/models/`, measures them, and writes `held_out.txt`,
`facts.json` and the table in `data/README.md`. Training resumes from checkpoints in `--work`; with
finished checkpoints only the rest is done again.
"""

import argparse
import json
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from platformdirs import user_cache_path

from data import path
from data.story import evaluate, export, sparse, tokens
from data.story.grammar import derivations, entropy_gap, sample
from data.story.model import DRAFT, RELU, STORY, Llama, Shape
from data.story.train import Trained, train

FORMS = {"f16": export.Type.F16, "q8_0": export.Type.Q8_0}
ABOUT = "Tells little stories drawn from a grammar of known entropy. Trained by data/story/make.py."


@dataclass(frozen=True)
class Recipe:
    """A model to train, for this many minutes unless an option differs."""

    name: str  # of its files
    title: str
    shape: Shape
    seed: int
    minutes: float
    forms: tuple[str, ...] = tuple(FORMS)
    start: str | None = None  # the model whose F16 file has its initial weights
    rate: float = 1.0
    sparsity: float = 0.0
    sparse: bool = False  # ship the sparse model; the dense one stays with checkpoints


# story-relu is story, trained further with ReLU instead of SiLU.
RECIPES = (
    Recipe("story", "Assay Story", STORY, seed=7, minutes=32),
    Recipe("story-draft", "Assay Story Draft", DRAFT, seed=7, minutes=7),
    Recipe("story-relu", "Assay Story ReLU", RELU, seed=8, minutes=30, forms=("f16",),
           start="story", rate=0.3, sparsity=0.2, sparse=True),
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m data.story.make")
    for each in RECIPES:
        parser.add_argument(f"--{each.name}-minutes", type=float, default=each.minutes,
                            help=f"training of {each.name} (%(default)s)")  # fmt: skip
    parser.add_argument("--only", choices=[each.name for each in RECIPES],
                        help="make this one and keep the facts of the others")  # fmt: skip
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", type=Path, default=user_cache_path("assay") / "story",
                        help="where vocabulary and checkpoints are kept (%(default)s)")  # fmt: skip
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.work.mkdir(parents=True, exist_ok=True)

    tokenizer = tokens.vocabulary(options.work / "tokenizer.json")
    floor = evaluate.floor(tokenizer)
    stories = evaluate.held_out()
    path("story/held_out.txt").write_text("".join(story.text + "\n" for story in stories))

    models = json.loads(path("story/facts.json").read_text())["models"] if options.only else {}
    for recipe in RECIPES:
        if options.only not in (None, recipe.name):
            continue
        start = None
        if recipe.start:
            start = export.read(path(f"models/{recipe.start}-f16.gguf"), recipe.shape)
        minutes = getattr(options, f"{recipe.name}-minutes".replace("-", "_"))
        done = train(
            recipe.name, recipe.shape, tokenizer, seconds=60 * minutes,
            floor=floor.nats_per_token, seed=recipe.seed,
            checkpoint=options.work / f"{recipe.name}.pt",
            start=start, rate=recipe.rate, sparsity=recipe.sparsity,
        )  # fmt: skip
        folder = options.work if recipe.sparse else path("models")
        files = {form: folder / f"{recipe.name}-{form}.gguf" for form in recipe.forms}
        for form, file in files.items():
            title = f"{recipe.title} {form.upper()}"
            export.write(file, done.model, tokenizer, FORMS[form], title, ABOUT)
        models[recipe.name] = model_facts(recipe, done, tokenizer, floor, files)
        models[recipe.name]["trained"]["threads"] = options.threads
        if recipe.sparse:
            models[recipe.name]["sparse"] = sparse.make(
                files["f16"], path(f"models/{recipe.name}.powerinfer.gguf"), tokenizer,
                recipe.shape, options.threads,
            )  # fmt: skip
        print(json.dumps(models[recipe.name], indent=2))

    facts = {
        "made_by": "python -m data.story.make",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "grammar": grammar_facts(floor),
        "held_out": {
            "stories": len(stories),
            "seed": evaluate.HELD_OUT_SEED,
            "tokens": floor.held_out_tokens,
            "nats": floor.held_out_nats,
            "floor_perplexity": floor.perplexity,
        },
        "models": models,
    }
    path("story/facts.json").write_text(json.dumps(facts, indent=2) + "\n")
    write_table(facts)


def grammar_facts(floor: evaluate.Floor, stories: int = 20_000) -> dict[str, Any]:
    """Exact values of the grammar, and estimates from samples."""
    rng = np.random.default_rng(evaluate.LENGTH_SEED)
    gap, error = entropy_gap(rng, stories)
    texts = [sample(rng).text for _ in range(stories // 10)]
    words = [len(text.split()) for text in texts]
    return {
        "nats_per_story": floor.nats_per_story,
        "tokens_per_story": floor.tokens_per_story,
        "nats_per_token": floor.nats_per_token,
        "words_per_story": {
            "least": min(words), "mean": float(np.mean(words)), "most": max(words)
        },
        "sampled_minus_exact_nats": gap,
        "sampled_standard_error_nats": error,
        "sampled_stories": stories,
        "parsed_stories": len(texts),
        "with_one_derivation": sum(len(derivations(text)) == 1 for text in texts),
        "checked": evaluate.judge(texts),
    }  # fmt: skip


def model_facts(
    recipe: Recipe,
    done: Trained,
    tokenizer: tokenizers.Tokenizer,
    floor: evaluate.Floor,
    files: dict[str, Path],
) -> dict[str, Any]:
    """Figures of a trained model and its files."""
    model = done.model.eval()
    texts = [story.text for story in evaluate.held_out()]

    def perplexity(model: Llama) -> dict[str, float]:
        value = evaluate.perplexity(model, tokenizer, texts)
        above = float(np.log(value / floor.perplexity))
        return {"perplexity": value, "nats_per_token_above_floor": above}

    return {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "shape": vars(recipe.shape),
        "trained": {
            "seconds": round(done.seconds),
            "steps": done.steps,
            "tokens": done.tokens,
            "last_loss_nats_per_token": done.loss,
        },
        "bytes": {form: file.stat().st_size for form, file in files.items()},
        "held_out": {"f32": perplexity(model)}
        | {form: perplexity(export.read(file, recipe.shape)) for form, file in files.items()},
        "generated": evaluate.judge(evaluate.generated(model, tokenizer)),
        "sample": evaluate.tell(model, tokenizer, 1, seed=1, start="Once upon a time")[0],
    }


def shares(judged: dict[str, float]) -> tuple[str, str]:
    return f"{judged['without_violation']:.1%}", f"{judged['grammar_can_write_it']:.1%}"


def write_table(facts: dict[str, Any]) -> None:
    """Write the figures between two marks in the README."""
    heads = ("", "parameters", "file", *(f"perplexity {form}" for form in ("f32", *FORMS)),
             "no violation", "grammar can write it")  # fmt: skip
    lowest = f"{facts['held_out']['floor_perplexity']:.4f}"
    checked = facts["grammar"]["checked"]
    rows = [
        heads,
        ("---",) * len(heads),
        ("the grammar: floor", "", "", *(lowest,) * 3, *shares(checked)),
    ]
    for name, model in facts["models"].items():
        held = {form: each["perplexity"] for form, each in model["held_out"].items()}
        size = model["bytes"]["f16"]
        if "sparse" in model:
            size, held["q8_0"] = model["sparse"]["bytes"], model["sparse"]["perplexity_predicted"]
        perplexities = (f"{held[form]:.4f}" for form in ("f32", *FORMS))
        parameters = f"{model['parameters'] / 1e6:.2f} M"
        rows.append(
            (
                f"`{name}`",
                parameters,
                f"{size / 1e6:.1f} MB",
                *perplexities,
                *shares(model["generated"]),
            )
        )
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    readme = path("README.md")
    before, _, rest = readme.read_text().partition("<!-- figures -->\n")
    _, _, after = rest.partition("<!-- end -->\n")
    readme.write_text(f"{before}<!-- figures -->\n{table}<!-- end -->\n{after}")


if __name__ == "__main__":
    main()
