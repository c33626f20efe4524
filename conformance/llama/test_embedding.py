"""Hidden states and embeddings: consistent with logits, and independent of batch, threads and
chunks."""

import json

import numpy as np
import pytest

from conformance.support.budgets import TEXT, budgeted, wanted
from conformance.support.models.small_models import Small
from conformance.support.program import printed
from engine import Engine, PromptError
from reference.linear import quantised_bound
from reference.quantise_activations import dequantise_activations, quantise_activations
from reference.table import OPS

TEXTS = ["Once upon a time, there was a dog", "The dog", "Tom and Lily ran to the park. " * 4]
POOLINGS = ("mean", "last", "cls")


@pytest.mark.parametrize(
    "small", [Small(), Small(tied=True), Small(format="F16"), Small(format="Q8_0")], ids=str
)
def test_logits_are_computed_from_hidden_states(small, tmp_path):
    """Hidden states times the output matrix are the logits, which test_step.py compares with the
    formula's, within the op's own bound."""
    tokens = np.random.default_rng(0).integers(0, small.vocab, 19).tolist()
    matrices, _ = small.tensors()
    output = matrices["token_embd.weight" if small.tied else "output.weight"]
    with Engine.load(small.write(tmp_path / "small.gguf"), threads=1, batch=7) as engine:
        hidden = engine.embed(tokens, "none", normalize=False)
        logits = engine.logits(tokens)
    assert hidden.shape == (len(tokens), small.hidden)
    op, inputs = OPS["linear"], {"x": hidden, "weight": output.data, "format": output.format}
    if small.format == "Q8_0":  # activations are int8 there
        q, scale, _ = quantise_activations(hidden)
        inputs["x"] = dequantise_activations(q, scale)
    rows = op.expected(inputs)
    bound = op.bound(inputs, rows)["out"]
    if small.format == "Q8_0":
        bound = quantised_bound(inputs["x"], inputs)
    assert (np.abs(logits - rows["out"]) <= bound).all()


def test_pooling(story):
    """The mean, the last and the first of the states of "none", normalised if requested."""
    for text in TEXTS:
        rows = story.embed(text, "none", normalize=False)
        assert len(rows) == len(story.encode(text))
        wide = rows.astype(np.float64)
        for pooling, expected in zip(POOLINGS, (wide.mean(axis=0), wide[-1], wide[0]), strict=True):
            raw = story.embed(text, pooling, normalize=False)
            assert raw.dtype == np.float32
            np.testing.assert_array_equal(raw, expected.astype(np.float32))
            one = story.embed(text, pooling)
            np.testing.assert_allclose(one, expected / np.linalg.norm(expected), rtol=2e-7)
        each = story.embed(text, "none")
        np.testing.assert_allclose(np.linalg.norm(each, axis=1), 1, rtol=2e-7)


@pytest.mark.parametrize("pooling", [*POOLINGS, "none"])
@pytest.mark.parametrize(
    "room", [{"batch": 5, "outputs": 2}, {"threads": 2, "outputs": 256}, {"sequences": 1}], ids=str
)
def test_batch_threads_and_chunks_change_no_bit(story, pooling, room):
    """Each of many texts has the vector that it has alone, for any split."""
    alone = [story.embed(text, pooling) for text in TEXTS]
    with Engine.load("story", **{"threads": 1, **room}) as other:
        for order in (TEXTS, TEXTS[::-1]):
            found = dict(zip(order, other.embed(order, pooling), strict=True))
            for text, expected in zip(TEXTS, alone, strict=True):
                np.testing.assert_array_equal(found[text], expected)


def test_streamed_weights_give_the_same_hidden_states(tmp_path):
    """Weights read from disk do not change hidden states."""
    path = Small(format="Q8_0", seed=3).write(tmp_path / "small.gguf")
    step = TEXT, range(len(TEXT)), [(0,)] * len(TEXT), range(len(TEXT))
    with budgeted(path, 0) as model:
        expected = model.hidden(*step).copy()
    with budgeted(path, wanted(path).least) as model:
        assert model.offload.stream.names
        np.testing.assert_array_equal(model.hidden(*step), expected)


def test_empty_list_of_texts(story):
    assert story.embed([]).shape == (0, story.model.config.hidden)


@pytest.mark.parametrize(
    ("texts", "pooling", "wrong"),
    [
        ("Once", "max", "pooling is 'max': want one of mean, last, cls, none"),
        (["Once", "a" * 9000], "mean", r"text 1: the prompt has \d+ tokens, the context holds"),
        ([5, 10**6], "mean", "token 1000000 is outside the vocabulary"),
        ([[]], "mean", "the prompt is empty"),
        ([5.5], "mean", "."),
    ],
)
def test_bad_texts(story, texts, pooling, wrong):
    with pytest.raises((PromptError, TypeError), match=wrong):
        story.embed(texts, pooling)


def test_the_program_prints_the_engines_vectors(inside, story, tmp_path):
    """It prints a line for each vector, or JSON; every line of a file is a text."""
    file = tmp_path / "texts"
    file.write_text("\n\n".join(TEXTS[:2]) + "\n")
    out = printed(inside("embed", "story", "-f", file, "-t", "1"))
    rows = np.array([line.split() for line in out.splitlines()], np.float32)
    np.testing.assert_array_equal(rows, story.embed(TEXTS[:2]))
    words = ("embed", "story", TEXTS[1], "--pooling", "none", "--no-normalize", "-t", "1", "--json")
    found = json.loads(printed(inside(*words)))
    expected = story.embed(TEXTS[1], "none", normalize=False)
    np.testing.assert_array_equal(np.array(found["embeddings"][0], np.float32), expected)
    assert found["tokens"] == [len(expected)]
