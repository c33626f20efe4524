"""Falcon and OPT against transformers and llama.cpp, asked live; skipped where they are missing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.llama.peers.compare import EXACT, Gap, engine_logits
from conformance.llama.peers.folder import words, write_json
from conformance.support.small_families import SmallFalcon
from engine.convert import convert

SIZES = {"vocab_size": 67, "num_hidden_layers": 2, "num_attention_heads": 4}
FALCON = {**SIZES, "model_type": "falcon", "hidden_size": 48, "max_position_embeddings": 256}
GROUPS = {**FALCON, "hidden_size": 64, "num_attention_heads": 8, "num_kv_heads": 2,
          "new_decoder_architecture": True}  # fmt: skip
OPT = {**SIZES, "model_type": "opt", "hidden_size": 48, "ffn_dim": 100,
       "max_position_embeddings": 60}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "Falcon 7B": FALCON,
    "Falcon 40B": GROUPS,
    "Falcon 11B": {**GROUPS, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False},
    "Falcon, every head its own keys": {**FALCON, "multi_query": False, "ffn_hidden_size": 100},
    "Falcon, ReLU, another theta": {
        **FALCON, "activation": "relu", "rope_parameters": {"rope_theta": 5e5}
    },
    "OPT": OPT,
    "OPT, untied, GELU": {**OPT, "tie_word_embeddings": False, "activation_function": "gelu"},
}  # fmt: skip
USUAL = [name for name in CONFIGS if "ReLU" not in name and "GELU" not in name]
# llama.cpp takes GELU's tanh form from a table in F16: the table's step is 2^-11 of a value.
TABLE = 2.0**-22


def tokens(count: int = 40) -> list[int]:
    return [1, *np.random.default_rng(0).integers(3, 67, count - 1).tolist()]


@pytest.fixture(name="saved", scope="module")
def _saved() -> Callable[[str, Path], Path]:
    for package in ("torch", "transformers"):
        reason = f"{package} is not installed: make test-transformers or make test-peers"
        pytest.importorskip(package, reason=reason)
    from conformance.llama.peers import hugging_face

    def save(name: str, folder: Path) -> Path:
        hugging_face.save_random(CONFIGS[name], folder)
        write_json(folder / "tokenizer.json", words(67))
        return folder

    return save


@pytest.mark.parametrize("name", CONFIGS)
def test_folders_are_read_alike(
    saved: Callable[[str, Path], Path], name: str, tmp_path: Path
) -> None:
    """What transformers saves and computes is what `assay convert` reads and the engine gives."""
    from conformance.llama.peers import hugging_face

    folder, path = saved(name, tmp_path / "model"), tmp_path / "model.gguf"
    notes = convert(folder, path, "F32").notes
    assert [note.split(":")[0] for note in notes] == (
        [] if name in USUAL else [f"its activation is {'relu' if 'ReLU' in name else 'gelu'}"]
    )
    gap = Gap.between(
        engine_logits(path, tokens()), hugging_face.logits_of_folder(folder, tokens())
    )
    assert gap.within(EXACT), gap


@pytest.mark.parametrize("two_norms", [False, True])
def test_llama_cpp_agrees(two_norms: bool, tmp_path: Path) -> None:
    """llama.cpp opens the same file; its GELU is the tanh form, which the key tells the engine."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is missing: make test-peers")
    from conformance.llama.peers import llama_cpp_python

    small = SmallFalcon(two_norms=two_norms, kv_heads=1 + two_norms)
    path = small.write(tmp_path / "small.gguf", hidden_activation="gelu_pytorch_tanh")
    gap = Gap.between(engine_logits(path, tokens()), llama_cpp_python.logits(path, tokens()))
    assert gap.within(TABLE), gap
