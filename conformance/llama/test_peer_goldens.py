"""The engine compared with stored answers of its peers, without having these installed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from conformance.llama.peers import goldens
from conformance.llama.peers.checkpoint import CHECKPOINTS, QUANTISED, Checkpoint
from conformance.llama.peers.compare import EXACT, Gap, demand_near, engine_logits, limit
from conformance.llama.peers.export import export
from conformance.llama.peers.rounding import as_llama_cpp, reference_logits
from conformance.llama.peers.stories import CONTEXT, NEAR, greedy_text, losses
from data.golden import sha256
from engine import Engine
from engine.convert import conversion
from engine.embedded import embedded_models
from reference.op import Array

INDEX = goldens.index()
AGAIN = f"made again by {goldens.MAKE}"
ANSWERS = [(name, *question) for name in CHECKPOINTS for question in goldens.load(name)]
STORIES = [
    pytest.param(name, entry["sha256"], story, id=f"{name}-{story['prompt']}")
    for name, entry in INDEX["told"].items()
    for story in entry["stories"]
]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_goldens_match_the_checkpoints(name):
    """Every checkpoint has a golden file, and its weights' digest is the stored one."""
    entry = INDEX["checkpoints"][name]
    described = json.loads(json.dumps(goldens.describe(CHECKPOINTS[name])))
    assert entry == {**described, "sha256": sha256(goldens.FOLDER / f"{name}.npz")}, AGAIN


def test_every_golden_file_is_in_the_index():
    """There are no files of removed checkpoints."""
    files = {path.stem for path in goldens.FOLDER.glob("*.npz")}
    assert files == set(CHECKPOINTS) == set(INDEX["checkpoints"]), AGAIN


@pytest.mark.parametrize(("name", "peer", "format"), ANSWERS)
def test_logits_agree(tmp_path, name, peer, format):
    """The engine's logits equal the peer's, within the limit that the peer's roundings allow."""
    checkpoint = CHECKPOINTS[name]
    demand_near(
        answer(tmp_path, checkpoint, format),
        goldens.load(name)[peer, format],
        limit(checkpoint, peer, format),
    )


@pytest.mark.parametrize("format", QUANTISED)
@pytest.mark.parametrize("name", ["blocks", "deep_blocks"])
def test_activation_quantisation_errs_no_more_than_llama_cpps(tmp_path, name, format):
    """The distance from the exact product is no larger than llama.cpp's."""
    answers = goldens.load(name)
    exact = answers["transformers", format]
    ours = Gap.between(answer(tmp_path, CHECKPOINTS[name], format), exact)
    theirs = Gap.between(answers["llama.cpp", format], exact)
    assert ours.nmse <= 1.5 * theirs.nmse, (ours, theirs)


@pytest.mark.parametrize("format", QUANTISED)
def test_the_gap_to_llama_cpp_is_its_f16_activation_scales(tmp_path, format):
    """The reference, its activations' scales rounded to F16, is llama.cpp: the gap is explained.

    It is so for most tokens; in some a tie is rounded the other way, hence the median.
    """

    checkpoint = CHECKPOINTS["blocks"]
    path = export(checkpoint, tmp_path / "model.gguf", format)
    ours = reference_logits(path, checkpoint, as_llama_cpp)[-goldens.ROWS :]
    theirs = goldens.load("blocks")["llama.cpp", format]
    gaps = [Gap.between(*rows).nmse for rows in zip(ours, theirs, strict=True)]
    assert np.median(gaps) <= EXACT, gaps


MISTAKES: dict[str, tuple[str, dict[str, Any]]] = {
    "another theta": ("rope_theta", {"rope_theta": 10000.0}),
    "no interpolation": ("rope_linear", {"rope_scaling": None}),
    "no yarn": ("rope_yarn", {"rope_scaling": None}),
    "untuned yarn": ("rope_yarn_tuned", {"rope_scaling": CHECKPOINTS["rope_yarn"].rope_scaling}),
    "no divisors": ("rope_llama3", {"rope_scaling": None}),
    "another epsilon": ("coarse_eps", {"rms_norm_eps": 1e-5}),
}


@pytest.mark.parametrize(("name", "fields"), MISTAKES.values(), ids=MISTAKES.keys())
def test_wrong_configs_are_detected(tmp_path, name, fields):
    """A wrong constant of the model exceeds the limits, so they are not too loose."""
    assert_detected(answer(tmp_path, replace(CHECKPOINTS[name], **fields), "F32"), name)


def test_wrong_row_order_is_detected(tmp_path):
    """Queries and keys in Hugging Face's order exceed the limits."""
    with patch.object(conversion, "neighbours", lambda rows, _: rows):
        mistaken = answer(tmp_path, CHECKPOINTS["grouped_query"], "F32")
    assert_detected(mistaken, "grouped_query")


@pytest.mark.skipif(not STORIES, reason=f"no story was told to the goldens: {AGAIN}")
@pytest.mark.parametrize(("name", "digest", "story"), STORIES)
def test_greedy_text_agrees(name, digest, story):
    """An embedded model's greedy text is llama.cpp's, token for token."""
    path = embedded_models()[name]
    assert sha256(path) == digest, f"{name} is not the model that the goldens tell of: {AGAIN}"
    with Engine.load(path, threads=2) as engine:
        assert engine.encode(story["prompt"]) == story["tokens"]
        assert greedy_text(engine, story["prompt"]) == story["continuation"]


@pytest.mark.skipif(not STORIES, reason=f"no story was told to the goldens: {AGAIN}")
@pytest.mark.parametrize("name", INDEX["told"])
def test_perplexity_agrees(name):
    """The held-out stories have llama.cpp's mean negative log-likelihood in each chunk."""
    with Engine.load(name, threads=2, context=CONTEXT) as engine:
        assert losses(engine) == pytest.approx(INDEX["told"][name]["costs"], abs=NEAR)


def assert_detected(mistaken: Array, name: str) -> None:
    """Every peer's answer in F32 is outside its limit."""
    for (peer, form), theirs in goldens.load(name).items():
        gap = Gap.between(mistaken, theirs)
        assert form != "F32" or not gap.within(limit(CHECKPOINTS[name], peer, form)), gap


def answer(folder: Path, checkpoint: Checkpoint, format: str) -> Array:
    """The engine's logits after the last tokens, as goldens have them."""
    path = export(checkpoint, folder / "model.gguf", format)
    return engine_logits(path, checkpoint.tokens())[-goldens.ROWS :]
