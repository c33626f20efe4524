"""Sparse prefill: equal to dense if all cells are seen, otherwise to the reference's patterns."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from conformance.support.models.small_models import Small
from conformance.support.sampled import GREEDY, sampled
from engine import Engine, Lookahead, MInference, PromptError
from engine.errors import ModelError
from engine.policies.minference import parse_prompt_attention
from reference.attention.prompt_patterns import prompt_pattern

SMALL = Small(head_dim=32, context=256, seed=9)
PROMPT = np.random.default_rng(0).integers(3, 60, 150).tolist()
FEW = MInference(columns=8, diagonals=6, first=2, recent=3, observers=20, stretch=64)
PATTERNS = [["stream_llm", 4, 9, 1.0], ["block_sparse", 1, 0, 1.0]]


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    folder = tmp_path_factory.mktemp("minference")
    path = SMALL.write(folder / "small.gguf")
    return partial(Engine.load, path, threads=2, context=256, sequences=3)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Heads 0 and 2 of both blocks have the other patterns; 1 and 3 vertical-slash."""
    path = tmp_path_factory.mktemp("patterns") / "patterns.json"
    path.write_text(json.dumps([{"0": PATTERNS[0], "2": PATTERNS[1]}] * 2))
    return replace(FEW, heads=str(path))


def test_full_budgets_have_the_bits_of_dense_attention(load):
    """Budgets as large as the prompt give the bits of dense attention; small ones differ."""
    everything = replace(FEW, columns=256)
    with load() as plain, load(prompt_attention=everything) as engine:
        dense = sampled(plain, PROMPT)
        assert sampled(engine, PROMPT) == dense
    with load(prompt_attention=FEW) as engine:
        assert [bits for _, bits in sampled(engine, PROMPT)] != [bits for _, bits in dense]


def test_masks_equal_the_references(load, mixed):
    """The last block's masks equal the reference's from its estimates, for each pattern."""
    with load(prompt_attention=mixed) as engine:
        engine.generate(PROMPT, replace(GREEDY, max_tokens=1))
        memory, begin = engine.model.memory, len(PROMPT) // 64 * 64
        ends = np.arange(begin, len(PROMPT)) + 1
        spans = np.stack([0 * ends, 0 * ends, ends], axis=1).astype(np.int32)
        given = {name: memory[f"blk.1.{name}"] for name in ("kinds", "sizes")}
        given |= {name: memory[f"prompt.{name}"] for name in ("sums", "scores")}
        assert given["kinds"].tolist() == [0, 1, 2, 1]
        assert given["sizes"].tolist() == [[4, 9], [8, 6], [1, 6], [8, 6]]
        before = np.zeros_like(memory["prompt.sees"])
        want = prompt_pattern(**given, spans=spans, first=2, recent=3, before=before)
        assert (memory["prompt.sees"] == want).all()
        shares = want[:, 0, : len(PROMPT)].mean(axis=1)
        assert (shares < 0.99).any()


def test_scores_are_dense(load, mixed):
    """Scores are dense, whatever was read before, and drafts change nothing."""
    with load() as plain, load(prompt_attention=mixed, speculation=Lookahead()) as engine:
        drafted = engine.generate(PROMPT, GREEDY).outputs[0].token_ids
        assert engine.score(PROMPT, PROMPT[:5]) == plain.score(PROMPT, PROMPT[:5])
    with load(prompt_attention=mixed) as engine:
        assert engine.generate(PROMPT, GREEDY).outputs[0].token_ids == drafted
        for params, shift in ((replace(GREEDY, prompt_logprobs=1), False), (GREEDY, True)):
            with pytest.raises(PromptError, match="needs full attention"):
                engine.stream(PROMPT, params, context_shift=shift)
        many = engine.generate([PROMPT, PROMPT], replace(GREEDY, prompt_logprobs=1))
        assert all(
            "prompt_logprobs and prompt_attention exclude each other" in str(m.error) for m in many
        )


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("sparse", " is 'sparse': want minference"),
        ("minference:columns", " minference has 'columns': want NAME=NUMBER, of columns"),
        ("minference:stretch=100", "stretch is 100: want a multiple of 64"),
        ("minference:recent=0", "recent and observers must be at least 1"),
    ],
)
def test_invalid_patterns_are_refused(inside, tmp_path, given, line):
    """One line names the error; in the shell it is wrong usage."""
    code, _, told = inside("run", str(tmp_path), "--prompt-attention", given, "-p", "a")
    assert (code, line in " ".join(told.split())) == (2, True), told
    with pytest.raises(ModelError):
        parse_prompt_attention(given)


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "not a file of patterns"),
        ('{"0": 1}', "want a list with an entry per block"),
        ("[{}]", "for 1 blocks, the model has 2"),
        ('[{"x": ["stream_llm", 1, 2]}, {}]', "'x' is not the index of a head"),
        ('[{}, {"9": ["stream_llm", 1, 2]}]', "block 1 has no head 9, only 4"),
        ('[{}, {"1": ["diagonal", 1, 2]}]', "block 1, head 1: ['diagonal', 1, 2] is none of"),
        ('[{}, {"1": ["stream_llm", 1]}]', "block 1, head 1: ['stream_llm', 1] is none of"),
        ('[{}, {"1": ["block_sparse", 0]}]', "block 1, head 1: attends to nothing"),
    ],
)
def test_bad_pattern_files_are_refused(load, tmp_path, content, line):
    """One line names the file, and the error in it."""
    path = tmp_path / "patterns.json"
    path.write_text(content)
    with pytest.raises(ModelError) as refused:
        load(prompt_attention=replace(FEW, heads=str(path)))
    assert str(path) in str(refused.value)
    assert line in str(refused.value)
