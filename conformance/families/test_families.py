"""Falcon and OPT: logits against formulas, the same bits every way, and files that are refused."""

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.llama.peers.compare import EXACT, PROMISE, Gap, engine_logits
from conformance.support.refusals import refusal
from conformance.support.small_families import (
    LENGTH,
    QUANTISED,
    SUBJECTS,
    SmallFalcon,
    SmallOPT,
    Subject,
    each_subject,
    exact,
    prompt,
)
from conformance.support.steps import loaded, rows
from engine import Engine, SamplingParams
from engine.config import ModelError
from engine.gguf_file import GGUFFile
from engine.model import Model
from engine.options import Options
from engine.quantise import Recipe, quantise
from reference.activations import gelu, gelu_erf, relu
from reference.op import Array
from reference.transformer import Weight, linear_of_quantised


@each_subject
def test_logits_are_the_formulas(small: Subject, tmp_path: Path) -> None:
    """Float weights give what the formula gives, but for float32's roundings."""
    tokens = prompt(small)
    ours = engine_logits(small.write(tmp_path / "small.gguf"), tokens)
    gap = Gap.between(ours, exact(small, tokens).astype(np.float32))
    assert gap.within(EXACT), gap


@pytest.mark.parametrize("small", [s for both in QUANTISED.values() for s in both], ids=str)
def test_quantised_weights(small: Subject, tmp_path: Path) -> None:
    """Activations are quantised to int8 as the formula does it, ties apart."""
    tokens = prompt(small)
    ours = engine_logits(small.write(tmp_path / "small.gguf"), tokens)
    theirs = exact(small, tokens, linear=linear_of_quantised).astype(np.float32)
    gap = Gap.between(ours, theirs)
    assert gap.within(PROMISE * small.blocks), gap


@pytest.mark.parametrize(
    ("small", "name", "activation"),
    [
        (SmallFalcon(), "gelu", gelu_erf),
        (SmallFalcon(), "gelu_pytorch_tanh", gelu),
        (SmallFalcon(), "relu", relu),
        (SmallOPT(), "gelu", gelu_erf),
    ],
    ids=["Falcon gelu", "Falcon tanh", "Falcon relu", "OPT gelu"],
)
def test_the_file_names_its_activation(
    small: Subject, name: str, activation: Callable[[Array], Array], tmp_path: Path
) -> None:
    """hidden_activation says which one it is."""
    tokens = prompt(small)
    path = small.write(tmp_path / "small.gguf", hidden_activation=name)
    theirs = exact(small, tokens, activation=activation).astype(np.float32)
    gap = Gap.between(engine_logits(path, tokens), theirs)
    assert gap.within(EXACT), gap


# The same bits


class Told:
    """A model on one thread, a text, and its logits after every token, told in one go."""

    def __init__(self, small: Subject, path: Path) -> None:
        self.small, self.path = small, small.write(path)
        self.model = Model(self.path, Options(threads=1, context=LENGTH, outputs=LENGTH))
        self.text = prompt(small)
        self.truth = run(self.model, self.text)


BITS = {"Falcon": SUBJECTS["Falcon, groups and two norms"], "OPT": SUBJECTS["OPT"],
        "Falcon, Q4_0": QUANTISED["Q4_0"][0], "OPT, Q8_0": QUANTISED["Q8_0"][1]}  # fmt: skip


@pytest.fixture(name="told", scope="module", params=BITS)
def _told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    return Told(BITS[request.param], tmp_path_factory.mktemp("bits") / "small.gguf")


def run(model: Model, tokens: list[int], start: int = 0) -> list[bytes]:
    return [row.tobytes() for row in rows(model, tokens, start)]


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_matter(told: Told, threads: int) -> None:
    """Any number of threads gives the bits of one."""
    with loaded(told.path, threads=threads, context=LENGTH, outputs=LENGTH) as model:
        assert run(model, told.text) == told.truth


@settings(max_examples=10)
@given(cuts=st.sets(st.integers(1, LENGTH - 1)))
def test_chunks_do_not_matter(told: Told, cuts: set[int]) -> None:
    """However a prompt is split, every token's logits are the same, bit for bit."""
    told.model.cells.clear()
    edges = [0, *sorted(cuts), LENGTH]
    assert told.truth == [
        row for a, b in pairwise(edges) for row in run(told.model, told.text[a:b], a)
    ]


# Use


@pytest.mark.parametrize("small", [SmallFalcon(), SmallOPT()], ids=["Falcon", "OPT"])
def test_text_is_generated(small: Subject, tmp_path: Path) -> None:
    """Greedy text is that of the logits, asked for one step after the other."""
    with Engine.load(small.write(tmp_path / "small.gguf"), threads=1) as engine:
        params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        told = [piece.token for piece in engine.generate([5, 6, 7], params)]
        tokens = [5, 6, 7]
        for _ in range(5):
            tokens.append(int(engine.logits(tokens)[-1].argmax()))
    assert told == tokens[3:]


def test_positions_end_where_their_table_does(tmp_path: Path) -> None:
    """A context of more cells than the model has positions is for several sequences; the position
    after the last is refused, and the model goes on."""
    small = SmallOPT(context=6)
    with loaded(small.write(tmp_path / "small.gguf"), context=20) as model:
        assert model.config.context == 6
        model.step([3] * 6, range(6), [(0,)] * 6)
        model.step([3] * 6, range(6), [(1,)] * 6)
        with pytest.raises(ModelError, match="position 6 is none of the 6 that"):
            model.step([3], [6], [(0,)])


def test_squares_are_of_the_files_tensors(tmp_path: Path) -> None:
    """What attn_qkv meets is observed under its own name, though three products read it."""
    path = SmallFalcon(two_norms=True).write(tmp_path / "small.gguf")
    with loaded(path, observe=True) as model:
        run(model, [3, 4, 5])
        found = model.observed.by_weight()
    assert set(found) == {
        f"blk.{i}.{name}.weight"
        for i in range(2)
        for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
    }
    assert all((sums > 0).all() for sums in found.values())
    assert not np.array_equal(found["blk.0.attn_qkv.weight"], found["blk.0.ffn_up.weight"])


@pytest.mark.parametrize("small", [SmallFalcon(), SmallOPT()], ids=["Falcon", "OPT"])
def test_quantised_files_run(small: Subject, tmp_path: Path) -> None:
    """Matrices become Q8_0, learned positions stay; the engine's logits move by what that costs."""
    path, out, tokens = small.write(tmp_path / "small.gguf"), tmp_path / "q.gguf", prompt(small)
    with GGUFFile(path) as file:
        quantise(file, out, Recipe("Q8_0"), threads=1)
    with GGUFFile(out) as file:
        kinds = {name: info.type_name for name, info in file.tensors.items()}
    assert {kinds.pop("position_embd.weight", "F32")} == {"F32"}
    assert {kind for name, kind in kinds.items() if file.tensors[name].dims[1:]} == {"Q8_0"}
    gap = Gap.between(engine_logits(out, tokens), exact(small, tokens).astype(np.float32))
    assert 0 < gap.nmse < 1e-3


# What is refused


def without(small: Subject, name: str, other: Any = None) -> Callable[[Path], Path]:
    """What writes the model without a tensor, or with another in its place."""

    def write(path: Path) -> Path:
        changed = small.tensors()
        for tensors in changed:
            if tensors.pop(name, None) is not None and other is not None:
                tensors[name] = other
        with patch.object(type(small), "tensors", lambda _: changed):
            return small.write(path)

    return write


FALCON, OPT = SmallFalcon(blocks=1, two_norms=True), SmallOPT(blocks=1)
NARROW = Weight(np.zeros((96, 256), np.uint8), "F32")  # [96, 64]: keys and values forgotten
FAULTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a norm's bias": (
        without(FALCON, "blk.0.attn_norm.bias"), "tensor blk.0.attn_norm.bias is missing"
    ),
    "the second norm's bias": (
        without(FALCON, "blk.0.attn_norm_2.bias"),
        "tensor blk.0.attn_norm_2.bias is missing",
    ),
    "fused rows": (
        without(FALCON, "blk.0.attn_qkv.weight", NARROW),
        r"tensor blk.0.attn_qkv.weight is \[96, 64\], not \[128, 64\]",
    ),
    "no fused rows": (
        without(FALCON, "blk.0.attn_qkv.weight"), "tensor blk.0.attn_qkv.weight is missing"
    ),
    "a projection's bias": (
        without(OPT, "blk.0.attn_v.bias"), "tensor blk.0.attn_v.bias is missing"
    ),
    "no positions": (
        without(OPT, "position_embd.weight"), "tensor position_embd.weight is missing"
    ),
    "positions of another context": (
        without(OPT, "position_embd.weight", Weight(np.zeros((40, 256), np.uint8), "F32")),
        r"tensor position_embd.weight is \[40, 64\], not \[42, 64\]",
    ),
    "a strange activation": (
        lambda path: FALCON.write(path, hidden_activation="silu"),
        "falcon.hidden_activation is 'silu': want gelu, gelu_pytorch_tanh, relu",
    ),
    "no room for positions": (
        replace(OPT, context=0).write, "opt.context_length must be a count of at least 3, got 2"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("write", "line"), FAULTS.values(), ids=FAULTS)
def test_files_that_are_refused(write: Callable[[Path], Path], line: str, tmp_path: Path) -> None:
    """One plain line names the file and what is wrong with it."""
    path = write(tmp_path / "bad.gguf")
    assert re.search(line, refusal(ModelError, path, Model, path))
