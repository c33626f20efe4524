"""Checkpoints of Falcon and OPT: rows that move, constants, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.family_checkpoints import (
    FALCON,
    GROUPS,
    HEADS,
    HIDDEN,
    OPT,
    SIZE,
    falcon,
    opt,
    written,
)
from engine.convert import CheckpointError, convert
from engine.gguf_file import GGUFFile


def test_groups_become_queries_keys_and_values(tmp_path: Path) -> None:
    """A group is its queries, one key and one value; GGUF wants all queries, all keys, all values.
    The norm of attention is the second, where the 7B has but the first."""
    out = tmp_path / "model.gguf"
    convert(written(tmp_path / "model", FALCON, falcon()), out, "F32")
    heads = np.arange((HEADS + 2 * GROUPS) * SIZE).reshape(GROUPS, HEADS // GROUPS + 2, SIZE)
    wanted = [heads[:, :-2].ravel(), heads[:, -2].ravel(), heads[:, -1].ravel()]
    with GGUFFile(out) as file:
        stored = file.tensor("blk.0.attn_qkv.weight").view(np.float32)
        assert_array_equal(stored[:, 0], np.concatenate(wanted))
        for name, value in (("attn_norm_2", 1), ("attn_norm", 2)):
            assert (file.tensor(f"blk.0.{name}.weight").view(np.float32) == value).all()
            assert (file.tensor(f"blk.0.{name}.bias").view(np.float32) == -value).all()
        assert "output.weight" not in file.tensors
        keys = {k.removeprefix("falcon."): v for k, v in file.metadata.items()}
    assert keys["attention.head_count_kv"] == GROUPS
    assert keys["tensor_data_layout"] == "jploski"
    assert "hidden_activation" not in keys


def test_opt_is_written_as_powerinfer_writes_it(tmp_path: Path) -> None:
    """Names, the table of positions with two rows more, and a context that counts them."""
    out = tmp_path / "model.gguf"
    convert(written(tmp_path / "model", OPT, opt()), out, "F16")
    with GGUFFile(out) as file:
        assert file.metadata["opt.context_length"] == 32
        assert file.tensors["position_embd.weight"].dims == (32, HIDDEN)
        assert file.tensors["position_embd.weight"].type_name == "F16"
        block = {name for name in file.tensors if name.startswith("blk.0.")}
    parts = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_up",
             "ffn_down")  # fmt: skip
    assert block == {f"blk.0.{part}.{kind}" for part in parts for kind in ("weight", "bias")}


def test_a_base_models_names_are_known(tmp_path: Path) -> None:
    """Saved without its output a model's names lack what they begin with: the same file."""
    weights = opt()
    convert(written(tmp_path / "model", OPT, weights), tmp_path / "a.gguf", name="one")
    base = {name.removeprefix("model."): weight for name, weight in weights.items()}
    convert(written(tmp_path / "base", OPT, base), tmp_path / "b.gguf", name="one")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "ALiBi": (FALCON | {"alibi": True}, "alibi is true; this family runs rotary positions"),
    "biases": (FALCON | {"bias": True}, "bias is true; this family's projections have none"),
    "one half after the other": (
        FALCON | {"new_decoder_architecture": False, "parallel_attn": False},
        "parallel_attn is false",
    ),
    "SiLU": (FALCON | {"activation": "silu"}, "activation is 'silu'; this family runs gelu, "),
    "groups that do not fit": (FALCON | {"num_kv_heads": 4}, "no multiple of head_count_kv 4"),
    "the 350M's norms": (
        OPT | {"do_layer_norm_before": False}, "do_layer_norm_before is false; this family runs"
    ),
    "the 350M's width": (
        OPT | {"word_embed_proj_dim": 16},
        "word_embed_proj_dim is 16; this family runs that of hidden_size, 24",
    ),
    "no biases": (OPT | {"enable_bias": False}, "enable_bias is false"),
    "plain norms": (OPT | {"layer_norm_elementwise_affine": False}, "affine is false"),
    "no last norm": (OPT | {"_remove_final_layer_norm": True}, "_remove_final_layer_norm is true"),
    "tanh": (OPT | {"activation_function": "tanh"}, "'tanh'; this family runs relu, gelu"),
    "fewer positions": (
        OPT | {"max_position_embeddings": 29},
        r"embed_positions.weight is \[32, 24\], not \[31, 24\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("config", "line"), FAULTS.values(), ids=FAULTS)
def test_what_is_refused(tmp_path: Path, config: dict[str, Any], line: str) -> None:
    """One line that names the file and what it says; nothing is written."""
    weights = falcon() if config["architectures"] == FALCON["architectures"] else opt()
    folder, out = written(tmp_path / "model", config, weights), tmp_path / "model.gguf"
    with pytest.raises(CheckpointError, match=line) as caught:
        convert(folder, out)
    assert str(caught.value).startswith(str(folder))
    assert str(caught.value).isprintable()
    assert not out.exists()
