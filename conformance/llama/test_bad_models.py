"""Bad models are refused in one plain line: tampered with, cut short, with wrong bytes."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from conformance.support.models.small_models import Small, tampered
from conformance.support.refusals import refusal
from engine import Engine, PromptError, SamplingParams
from engine.checks import NumericalError
from engine.config import ModelError
from engine.gguf.file import GGUFError
from engine.tokenizer.vocab import TokenizerError
from reference.models.transformer import Weight

REFUSALS = (GGUFError, ModelError, TokenizerError)
SMALL = Small(blocks=1)
ONES = np.ones(64, np.float32)
TAMPERINGS: dict[str, dict[str, Any]] = {
    "tensor blk.0.attn_q.weight is missing": {"blk.0.attn_q.weight": None},
    "tensor token_embd.weight is missing": {"token_embd.weight": None},
    "tensor blk.0.attn_q.weight is [96, 64], not [64, 64]": {
        "blk.0.attn_q.weight": Weight(np.zeros((96, 64 * 4), np.uint8), "F32")
    },
    "tensor output_norm.weight is [63], not [64]": {"output_norm.weight": ONES[1:]},
    "tensor output_norm.weight is [1, 64], not [64]": {"output_norm.weight": ONES[None]},
    "tensor token_embd.weight is [64], not [0, 64]": {"token_embd.weight": ONES},
    "tensor blk.0.attn_norm.weight is in F64; formats that run:": {
        "blk.0.attn_norm.weight": ONES.astype(np.float64)
    },
    "tensor blk.0.ffn_up.weight is in Q8_1; formats that run:": {
        "blk.0.ffn_up.weight": Weight(np.zeros((96, 80), np.uint8), "Q8_1")
    },
    "tensor blk.0.attn_q.bias is [3], not [64]": {"blk.0.attn_q.bias": ONES[:3]},
}


@pytest.mark.parametrize("message", TAMPERINGS)
def test_bad_tensors_are_named(message, tmp_path):
    """A tensor that is missing, or of a wrong shape or type, is named with what was expected."""
    path = tampered(SMALL, TAMPERINGS[message]).write(tmp_path / "tampered.gguf")
    line = refusal(ModelError, path, Engine.load, path, threads=1)
    assert message in line


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["blk.0.ffn_down.weight", "token_embd.weight"])
def test_non_finite_weights_are_reported(bad, name, tmp_path):
    """NaN or infinity in a weight is reported when it reaches the logits."""
    path = SMALL.write(tmp_path / "bad.gguf")
    info = gguf.GGUFReader(path)
    (tensor,) = [t for t in info.tensors if t.name == name]
    data = bytearray(path.read_bytes())
    at = int(tensor.data_offset) + 5 * 64 * 4
    data[at : at + 4] = np.float32(bad).tobytes()
    path.write_bytes(data)
    with Engine.load(path, threads=1) as engine:
        with pytest.raises(NumericalError, match=r"logits are not finite .* NaN or infinity"):
            list(engine.stream([5, 6], SamplingParams(max_tokens=4)))
        with pytest.raises(NumericalError):
            engine.logits([5, 6])


def load_error(path: Path) -> str:
    """Why a model does not load, or "": then it generates text, or reports non-finite logits."""
    try:
        engine = Engine.load(path, threads=1, context=16, batch=4)
    except REFUSALS as error:
        return str(error)
    with engine, contextlib.suppress(NumericalError, PromptError):
        list(engine.stream([3, 4, 5], SamplingParams(max_tokens=2)))
    return ""


@pytest.mark.parametrize("part", ["header", "data"])
def test_corrupted_models_load_or_are_refused(part, tmp_path):
    """Wrong bytes load or are refused in one line; wrong weights always load."""
    path = replace(SMALL, format="Q4_0").write(tmp_path / "mutant.gguf")
    whole = path.read_bytes()
    data = min(int(t.data_offset) for t in gguf.GGUFReader(path).tensors)
    begin, end = (0, data) if part == "header" else (data, len(whole))
    rng = np.random.default_rng(1)
    lines = []
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    count = 300 if part == "header" else 40
    for _ in range(count):
        mutant = bytearray(whole)
        for at in rng.integers(begin, end, rng.integers(1, 4)):
            mutant[at] = rng.integers(256)
        path.write_bytes(mutant)
        lines.append(load_error(path))
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files
    assert all(line.isprintable() for line in lines)
    refused = sum(map(bool, lines))
    assert refused == 0 if part == "data" else 0 < refused < count
