"""The embedded models have the properties that `data/story/facts.json` states."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.story import words
from data.story.grammar import derivations, entropy, log_probability, sample
from data.story.tales import KEYS, Tale
from engine import Engine, SamplingParams
from engine.embedded import embedded_models
from engine.perplexity import Passage, Scorer

STORY = Path(__file__).resolve().parents[2] / "data" / "story"
FACTS = json.loads((STORY / "facts.json").read_text())
HELD_OUT = (STORY / "held_out.txt").read_text().splitlines()


@pytest.mark.parametrize("name", ["story-f16", "story-q8_0", "story-draft-f16", "story-draft-q8_0"])
def test_held_out_perplexity_is_as_recorded(name):
    """The engine gives the perplexity that PyTorch measured on the same weights, to a part in 1,000
    in F16, and to five where activations are quantised too."""
    family, _, kind = name.rpartition("-")
    recorded = FACTS["models"][family]["held_out"][kind]["perplexity"]
    assert perplexity(name) == pytest.approx(recorded, rel=1e-3 if kind == "f16" else 5e-3)


@pytest.mark.parametrize(("sparse", "key"), [("off", "true_mask"), ("on", "predicted")])
def test_sparse_perplexity_is_as_recorded(sparse, key):
    """The same is true of the model with ReLU, with all neurons or the predicted ones; and skipping
    the others costs less than a part in 1,000."""
    recorded = FACTS["models"]["story-relu"]["sparse"]
    found = perplexity("story-relu", sparse=sparse)
    assert found == pytest.approx(recorded[f"perplexity_{key}"], rel=5e-3)
    assert recorded["perplexity_predicted"] < 1.001 * recorded["perplexity_true_mask"]


def perplexity(name: str, **options: Any) -> float:
    """The perplexity of the held-out stories, EOS included; no model is below the entropy."""
    with Engine.load(name, context=512, **options) as engine:
        eos, scorer = engine.tokenizer.eos_id, Scorer(engine)
        texts = [Passage([*engine.encode(story), eos]) for story in HELD_OUT]
        nll = np.concatenate([scorer.read(text).nll for text in texts])
    assert len(nll) == FACTS["held_out"]["tokens"]
    found = float(np.exp(nll.mean()))
    assert found > FACTS["held_out"]["floor_perplexity"]
    return found


def test_the_draft_model_has_the_same_vocabulary():
    """Both models give a text the same tokens, as speculation needs."""
    with Engine.load("story") as story, Engine.load("story-draft") as draft:
        assert story.encode(HELD_OUT[0]) == draft.encode(HELD_OUT[0])
        assert story.tokenizer.vocab_size == draft.tokenizer.vocab_size


def test_embedded_models_are_loaded_by_name():
    """`story` is the F16 file, `story-relu` the sparse one; other files have their stems."""
    models = embedded_models()
    assert models["story"] == models["story-f16"]
    assert models["story-draft"] == models["story-draft-f16"]
    assert models["story-relu"].name == "story-relu.powerinfer.gguf"


def test_greedy_text_ends_by_itself():
    """Greedy generation from the demo's prompt ends by itself, with a full stop."""
    with Engine.load("story", context=512) as engine:
        params = SamplingParams(temperature=0, max_tokens=400)
        pieces = list(engine.stream("Once upon a time", params))
    assert pieces[-1].finish_reason == "stop"
    assert "".join(piece.text for piece in pieces).rstrip().endswith((".", "!", '"'))


def test_sampled_entropy_is_the_grammars():
    """The mean of -log p over sampled stories is the exact entropy, within five standard errors."""
    rng = np.random.default_rng(5)
    nats = np.array([-sample(rng).log_probability for _ in range(2000)])
    assert abs(nats.mean() - entropy()) < 5 * nats.std() / len(nats) ** 0.5
    assert entropy() == pytest.approx(FACTS["grammar"]["nats_per_story"])


def test_a_story_has_one_derivation():
    """Sampled stories parse in exactly one way, and with the probability they were drawn with."""
    rng = np.random.default_rng(6)
    for _ in range(50):
        story = sample(rng)
        assert len(derivations(story.text)) == 1
        assert log_probability(story.text) == pytest.approx(story.log_probability)


def test_the_long_context_model_answers_questions():
    """Of facts from a text's beginning to its end, some 3,900 tokens, at least 95% are answered
    word for word when a question follows it."""
    tale, facts = Tale(np.random.default_rng(8), stories=0.1), []
    with Engine.load("story-long", threads=2) as engine:
        prompt = [engine.tokenizer.bos_id]
        while len(prompt) < 3_900:
            part = tale.tell()
            facts += [part.fact] if part.fact else []
            prompt += engine.tokenizer.encode(f" {part.text}", add_special=False)
        asked = facts[:: len(facts) // 20][:20]
        right = 0
        for fact in asked:
            question = engine.tokenizer.encode(f" {fact.question}", add_special=False)
            answer = engine.generate(prompt + question, SamplingParams(max_tokens=6, temperature=0))
            right += answer.text == f" {fact.told}"
    assert right >= 0.95 * len(asked)


def test_long_texts_ask_for_each_fact_once():
    """Every fact is stated once and asked for once, and the probabilities of facts and of questions
    are those of drawing all of them in some order."""
    tale = Tale(np.random.default_rng(9), stories=0.0)
    told = [tale.tell() for _ in KEYS]
    asked = [tale.ask() for _ in KEYS]
    assert len({(part.fact.owner, part.fact.toy) for part in told}) == len(KEYS)
    assert {part.text for part in asked} == {f"{p.fact.question} {p.text}" for p in told}
    orders = np.log(np.arange(1, len(KEYS) + 1)).sum()
    colours = len(KEYS) * np.log(len(words.COLOURS))
    assert -sum(part.log_probability for part in told) == pytest.approx(orders + colours)
    assert -sum(part.log_probability for part in asked) == pytest.approx(orders)
    assert tale.tell().fact is None
    assert tale.ask().fact is None
