"""The engine against llama.cpp, asked live; without it these tests are skipped."""

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from conformance.llama.peers import compare
from conformance.llama.peers.checkpoint import CHECKPOINTS, QUESTIONS
from conformance.llama.peers.export import export
from conformance.llama.peers.folder import write_folder, write_json
from conformance.llama.peers.rounding import as_llama_cpp, reference_logits
from conformance.llama.peers.stories import PROMPTS, greedy_text
from conformance.support.tokenizer.tokenizer_files import sentencepiece_model, small
from engine import Engine
from engine.convert import convert
from engine.embedded import embedded_models
from engine.gguf.file import GGUFFile
from engine.quantise import Recipe, quantise
from reference.formats import FORMATS

READ = [name for name, kind in FORMATS.items() if not kind.encode]
TEXTS = (
    "",
    "Once upon a time, there was a quiet otter named Olive.",
    " two  spaces,\ttab\nand\n\nlines \n ",
    "It's 1234567 o'clock -- isn't it?! We'll see.",
    "été, Straße, Ελλάδα, 日本語, \u202eright to left, e\u0301, 🦊👩‍🚀",
    "<|begin|>again<|end|><|end|> <|nothing|>",
)


@pytest.mark.parametrize(("name", "format"), QUESTIONS)
def test_logits_agree(llama_cpp, tmp_path, name, format):
    """On a random LLaMA of any kind, in any format, both give the same file the same logits."""
    checkpoint = CHECKPOINTS[name]
    tokens = checkpoint.tokens()
    path = export(checkpoint, tmp_path / "model.gguf", format)
    compare.demand_near(
        compare.engine_logits(path, tokens),
        llama_cpp.logits(path, tokens),
        compare.limit(checkpoint, llama_cpp.PEER, format),
    )


@pytest.mark.parametrize("format", READ)
def test_read_only_formats_agree(llama_cpp, tmp_path, format):
    """Both round 256 activations by one scale, so most tokens' logits are the same in float32; a
    product within a rounding of the half between two codes may move a token's by one code."""
    checkpoint = CHECKPOINTS["blocks"]
    tokens = checkpoint.tokens()
    path = export(checkpoint, tmp_path / "model.gguf", format)
    ours, theirs = compare.engine_logits(path, tokens), llama_cpp.logits(path, tokens)
    assert (
        np.median([compare.nmse(a, b) for a, b in zip(ours, theirs, strict=True)]) <= compare.EXACT
    )
    compare.demand_near(ours, theirs, compare.PROMISE)


def test_logits_agree_with_an_f16_cache(llama_cpp, tmp_path):
    """With keys and values kept in F16 on both sides, logits agree as well."""
    checkpoint = CHECKPOINTS["grouped_query"]
    tokens = checkpoint.tokens()
    path = export(checkpoint, tmp_path / "model.gguf")
    ours, theirs = compare.engine_logits(path, tokens, "F16"), llama_cpp.logits(path, tokens, "F16")
    compare.demand_near(ours, theirs, compare.CACHE_F16)


@pytest.mark.parametrize("kind", ["pieces", "bytes"])
def test_converted_folders_agree(llama_cpp, tmp_path, kind):
    """For a converted folder both give the same tokens of a text, and the same logits of these."""
    size = 430 if kind == "pieces" else 260
    checkpoint = replace(CHECKPOINTS["rope_llama3"], vocab_size=size)
    folder = write_folder(checkpoint, tmp_path / "model", "BF16", shards=2)
    if kind == "pieces":
        (folder / "tokenizer.model").write_bytes(sentencepiece_model())
    else:
        write_json(folder / "tokenizer.json", small())
    path = tmp_path / "model.gguf"
    convert(folder, path, "BF16")
    with (
        Engine.load(path, threads=2, kv_format="F32") as engine,
        closing(llama_cpp.load(path)) as llama,
    ):
        for text in TEXTS:
            ids = engine.encode(text)
            assert ids == llama.tokenize(text.encode(), add_bos=True, special=True), text
        ours = engine.logits(ids)
    compare.demand_near(
        ours, llama_cpp.logits(path, ids), compare.limit(checkpoint, llama_cpp.PEER, "BF16")
    )


@pytest.mark.parametrize(
    "type_", ["Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "Q2_K", "Q3_K_M", "TQ2_0", "MXFP4"]
)
def test_quantised_files_agree(llama_cpp, tmp_path, type_):
    """llama.cpp opens a file that `quantise` made and gives what the reference gives, activations
    rounded as it does; the engine's is about as far from what is exact.

    The first is so for most tokens; in some a tie is rounded the other way, hence the median.
    """
    checkpoint, made = CHECKPOINTS["blocks"], tmp_path / "made.gguf"
    with GGUFFile(export(checkpoint, tmp_path / "model.gguf")) as file:
        quantise(file, made, Recipe(type_), threads=1)
    tokens = checkpoint.tokens()
    theirs, exact = llama_cpp.logits(made, tokens), reference_logits(made, checkpoint)
    rounded = reference_logits(made, checkpoint, as_llama_cpp)
    gaps = [compare.Gap.between(*rows).nmse for rows in zip(rounded, theirs, strict=True)]
    assert np.median(gaps) <= compare.EXACT, gaps
    ours = compare.Gap.between(compare.engine_logits(made, tokens), exact)
    assert ours.nmse <= 1.5 * compare.Gap.between(theirs, exact).nmse


@pytest.fixture(name="both", scope="module", params=["story-f16", "story-q8_0"])
def both_engines(llama_cpp, request):
    """An embedded model, opened by both, with caches in F16."""
    path = embedded_models().get(request.param)
    if path is None:
        pytest.skip(f"{request.param} is not among the embedded models: python -m data.story.make")
    with Engine.load(path, threads=2) as engine, closing(llama_cpp.load(path, "F16", 0)) as llama:
        yield engine, llama


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_of_trained_models_agree(both, prompt):
    """Along a story, an embedded model's logits are the same to the promised 1e-4."""
    engine, llama = both
    tokens = engine.encode(prompt) + greedy_text(engine, prompt)
    llama.reset()
    llama.eval(tokens)
    compare.demand_near(engine.logits(tokens), llama.scores[: len(tokens)], compare.PROMISE)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_agree(both, text):
    """Any text becomes the same tokens, with special ones parsed."""
    engine, llama = both
    assert engine.encode(text) == llama.tokenize(text.encode(), add_bos=True, special=True)
