"""Perplexity compared with a direct computation, base files and comparisons with them, and bad
input."""

import json
import math
import struct
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import numpy as np
import pytest

from conformance.support.models.formula import log_softmax
from conformance.support.program import fault, printed
from data.golden import FOLDER
from engine import Engine
from engine.atomic_write import OutputError
from engine.embedded import resolve
from engine.gguf.file import GGUFFile
from engine.perplexity import (
    Coded,
    Estimate,
    LogitsFile,
    Passage,
    PerplexityError,
    Scorer,
    Tally,
    Text,
    cut,
    writing,
)
from engine.perplexity.statistics import percentiles
from engine.quantise import Recipe, quantise

HELD_OUT = FOLDER.parent / "story" / "held_out.txt"
CONTEXT, CHUNKS = 64, 4
HALF_STEP = 16 / 65535 * (1 / 2 + 1 / 64)  # of a base's log-probabilities, in nats
ROUNDING = 1e-5  # of nats in float32, where they are some tens


@pytest.fixture(name="story", scope="module")
def _story():
    with Engine.load("story", threads=2, context=CONTEXT, outputs=CONTEXT) as engine:
        yield engine


@pytest.fixture(name="text", scope="module")
def _text(story):
    tokens = story.tokenizer.encode(HELD_OUT.read_text())
    return cut(tokens, CONTEXT, story.tokenizer.added_bos, CHUNKS)


def tally(engine: Engine, text: Text, base: LogitsFile | None = None) -> Tally:
    scorer, found = Scorer(engine), Tally()
    coded = base.coded() if base else repeat(None)
    for passage in text.passages():
        found.add(scorer.read(passage, next(coded)))
    return found


def write_base(engine: Engine, text: Text, path: Path) -> Tally:
    """Read a text and write a base file."""
    scorer, found, vocab = Scorer(engine), Tally(), engine.model.config.vocab
    with writing(path, text, vocab) as writer:
        for passage in text.passages():
            coded = Coded.empty(text.scored, vocab)
            found.add(scorer.read(passage, keep=coded))
            writer.add(coded)
    return found


def direct_computation(engine: Engine, text: Text) -> tuple[list[float], float]:
    """-ln p of every token that counts, from the logits in float64, and a kernel's error bound."""
    nll, worst = [], 0.0
    for chunk in text.chunks.tolist():
        tokens = [engine.tokenizer.bos_id, *chunk[1:]]
        logits = engine.logits(tokens)
        for at in range(text.context // 2, text.context - 1):
            log_p, error = log_softmax(logits[at])
            nll.append(-float(log_p[tokens[at + 1]]))
            worst = max(worst, error)
    return nll, worst


def test_perplexity_is_that_of_the_engine_s_logits(story, text):
    """Each token of a chunk's second half counts, by the logits before it, in float64."""
    expected, error = direct_computation(story, text)
    found = tally(story, text)
    assert found.nll == pytest.approx(expected, abs=error)
    assert len(expected) == CHUNKS * (CONTEXT - 1 - CONTEXT // 2)
    value = found.perplexity().perplexity.value
    assert value == pytest.approx(math.exp(sum(expected) / len(expected)), rel=2 * error)
    assert found.running[-1] == pytest.approx(value, rel=1e-12)


def test_steps_of_any_size_give_the_same_bits(story, text):
    """Any number of tokens and logits in a step gives the same bits."""
    with Engine.load("story", threads=1, context=CONTEXT, batch=23, outputs=5) as narrow:
        assert tally(narrow, text).nll.tobytes() == tally(story, text).nll.tobytes()


def test_chunks_equal_llama_cpps():
    """Chunks do not overlap, the rest is dropped, and BOS replaces a chunk's first token."""
    text = cut(range(100, 126), 8, 1)
    assert text.chunks.tolist() == [list(range(b, b + 8)) for b in (100, 108, 116)]
    passages = list(text.passages())
    assert [p.tokens[0] for p in passages] == [1, 1, 1]
    assert list(passages[1].scored_tokens) == [113, 114, 115]
    assert [p.tokens[0] for p in cut(range(100, 126), 8, None, 2).passages()] == [100, 108]


def test_passages_are_scored_from_their_first_token(story):
    """If a passage counts from its first token, all but that token are scored."""
    tokens = [0, 639, 640, 286, 260]
    assert len(Scorer(story).read(Passage(tokens)).nll) == 4
    assert len(Scorer(story).read(Passage(tokens, 3)).nll) == 1
    with pytest.raises(PerplexityError, match="has none behind 5"):
        Scorer(story).read(Passage(tokens, 4))
    with pytest.raises(PerplexityError, match="66 tokens, the context holds 64"):
        Scorer(story).read(Passage([0] * 66))


def test_standard_error_equals_llama_cpps():
    """It is sqrt((mean x^2 - mean^2) / (n - 1)), and times the perplexity for the perplexity's."""
    found = Estimate.mean(np.array([1.0, 2.0, 3.0, 6.0]))
    assert (found.value, found.error) == (3.0, pytest.approx(math.sqrt((50 / 4 - 9) / 3)))
    assert found.exp() == Estimate(pytest.approx(math.e**3), pytest.approx(math.e**3 * found.error))


def test_percentiles_are_interpolated():
    """Of 0 to 100 in steps of 10, the 5th percentile is 5."""
    found = percentiles(np.arange(0.0, 101.0, 10.0), (0.99, 0.5, 0.05))
    assert found == {"maximum": 100, "99%": pytest.approx(99), "50%": 50, "5%": 5, "minimum": 0}


def test_paired_standard_error(story, text, tmp_path):
    """The variance is var(a) + var(b) - 2 cov(a, b), for logarithm and difference."""
    write_base(story, text, tmp_path / "base")
    with (
        Engine.load("story-draft", threads=2, context=CONTEXT) as draft,
        LogitsFile(tmp_path / "base") as base,
    ):
        found = tally(draft, text, base)
    comparison = found.comparison()
    assert comparison
    a, b = found.nll, np.concatenate([s.base.nll for s in found.scores if s.base])
    (aa, ab), (_, bb) = np.cov(a, b, ddof=0) / (len(a) - 1)
    assert comparison.log_ratio.error == pytest.approx(math.sqrt(aa + bb - 2 * ab))
    assert comparison.log_ratio.value == pytest.approx(a.mean() - b.mean())
    assert comparison.correlation == pytest.approx(ab / math.sqrt(aa * bb))
    p, q = math.exp(a.mean()), math.exp(b.mean())
    error = math.sqrt(p * p * aa + q * q * bb - 2 * p * q * ab)
    assert comparison.difference == Estimate(pytest.approx(p - q), pytest.approx(error))
    assert comparison.delta_p.value == pytest.approx((np.exp(-a) - np.exp(-b)).mean())
    share = comparison.same_top.value
    assert comparison.same_top.error == pytest.approx(math.sqrt(share * (1 - share) / (len(a) - 1)))


def test_divergence_from_itself_is_rounding(story, text, tmp_path):
    """The divergence from itself is that of rounding to 16 bits."""
    kept = write_base(story, text, tmp_path / "base")
    with LogitsFile(tmp_path / "base") as base:
        found = tally(story, text, base)
    assert found.nll.tobytes() == kept.nll.tobytes()
    comparison = found.comparison()
    assert comparison.same_top == Estimate(1.0, 0.0)
    assert abs(comparison.divergence.value) <= HALF_STEP + ROUNDING
    likely = found.nll < 15  # what is deeper than 16 below the likeliest is clipped
    theirs = np.concatenate([s.base.nll for s in found.scores if s.base])
    assert np.abs(found.nll - theirs)[likely].max() <= HALF_STEP + ROUNDING


def test_divergence_of_quantised_models(story, text, tmp_path):
    """Four bits diverge from F16 by more than rounding, eight by less than four."""
    write_base(story, text, tmp_path / "base")
    divergence = {}
    for kind in ("Q8_0", "Q4_0"):
        out = tmp_path / f"{kind}.gguf"
        with GGUFFile(resolve("story")) as file:
            quantise(file, out, Recipe(kind, pure=True), threads=1)
        with (
            Engine.load(out, threads=2, context=CONTEXT) as engine,
            LogitsFile(tmp_path / "base") as base,
        ):
            comparison = tally(engine, text, base).comparison()
        divergence[kind] = comparison.divergence.value
    assert divergence["Q4_0"] > HALF_STEP + ROUNDING
    assert divergence["Q4_0"] > divergence["Q8_0"]


@pytest.mark.parametrize("vocab", [5, 6])
def test_base_files_have_llama_cpps_layout(tmp_path, vocab):
    """Magic, context, vocabulary, chunks, tokens; rows of scale, least and codes, evenly many."""
    text = cut(range(16), 8, None)
    rng = np.random.default_rng(0)
    coded = [
        Coded(
            rng.integers(0, 65536, (3, vocab)).astype(np.uint16),
            rng.standard_normal((3, 2)).astype(np.float32),
        )
        for _ in range(2)
    ]
    with writing(tmp_path / "base", text, vocab) as writer:
        for one in coded:
            writer.add(one)
    expected = b"_logits_" + struct.pack("<19i", 8, vocab, 2, *range(16))
    for one in coded:
        for line, codes in zip(one.lines, one.codes, strict=True):
            expected += struct.pack(f"<2f{vocab}H", *line, *codes) + b"\0\0" * (vocab % 2)
    assert (tmp_path / "base").read_bytes() == expected
    with LogitsFile(tmp_path / "base") as base:
        assert (base.context, base.vocab, base.count) == (8, vocab, 2)
        assert (base.chunks == text.chunks).all()
        for one, again in zip(coded, base.coded(), strict=True):
            assert (one.codes == again.codes).all()
            assert (one.lines == again.lines).all()


def test_unfinished_base_files_are_removed(tmp_path):
    """An error while a base is written leaves the previous one, and no other file."""
    path = tmp_path / "base"
    path.write_bytes(b"older")
    with pytest.raises(RuntimeError), writing(path, cut(range(16), 8, None), 4):
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["base"]
    assert path.read_bytes() == b"older"


def test_the_program_prints_json(inside, tmp_path):
    """A base kept and compared with: figures as JSON, the text read from stdin or a file."""
    base = tmp_path / "base"
    options = ["-c", "64", "--chunks", "3", "-t", "1"]
    out = printed(inside("perplexity", "story", HELD_OUT, *options, "--save-logits", base))
    assert out.startswith("perplexity ")
    words = ("perplexity", "story-q8_0", HELD_OUT, "-t", "1", "--base", base, "--json")
    found = json.loads(printed(inside(*words)))
    assert (found["context"], found["chunks"], found["tokens"]) == (64, 3, 93)
    assert len(found["running"]) == 3
    assert found["comparison"]["same_top"]["value"] > 0.9
    assert found["comparison"]["base"]["tokens"] == 93
    out = printed(inside("perplexity", "story", HELD_OUT, *options, "--base", base))
    assert "same likeliest token" in out


def test_bad_base_files_are_refused(inside, text, tmp_path):
    """A base of another text, vocabulary or context, and what is none, is refused in one line."""
    base = tmp_path / "base"

    def made(text: Text, vocab: int = 1024) -> Path:
        with writing(base, text, vocab) as writer:
            for _ in text.chunks:
                writer.add(Coded.empty(text.scored, vocab))
        return base

    def said(*options: str) -> str:
        return fault(inside("perplexity", "story", HELD_OUT, "--base", base, *options))

    made(text, 1023)
    assert said() == f"{base}: the base has a vocabulary of 1023 tokens, the model 1024"
    made(text)
    assert said("-c", "32") == f"{base}: the base read chunks of 64 tokens, not 32"
    assert "the base read 4 chunks, the text has 5" in said("--chunks", "5")
    whole = base.read_bytes()
    base.write_bytes(whole[:-1])
    assert "cut off while it was written" in said()
    base.write_bytes(whole[:19])
    assert "this is no file of a base's logits" in said()
    base.write_bytes(b"GGUF" + whole[4:])
    assert "this is no file of a base's logits" in said()
    base.write_bytes(whole[:8] + struct.pack("<3i", 64, -1, 4) + whole[20:])
    assert "the file is damaged" in said()
    changed = text.chunks.copy()
    changed[2, 5] += 1
    made(replace(text, chunks=changed))
    assert said() == f"{base}: the base read another text: chunk 3 differs"
    made(text)
    assert "it is the file that is read" in said("--save-logits", str(base))
    base.unlink()
    assert "No such file" in said()


def test_unwritable_base_files_are_refused(inside, tmp_path):
    """A path that cannot be written is reported before any work."""
    nowhere = tmp_path / "none" / "base"
    line = fault(inside("perplexity", "story", HELD_OUT, "--save-logits", nowhere))
    assert "cannot be written" in line
    with pytest.raises(OutputError), writing(tmp_path, cut(range(16), 8, None), 4):
        pass
