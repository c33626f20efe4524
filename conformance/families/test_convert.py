"""Checkpoints of Falcon and OPT: rows that move, constants, and what is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.llama.peers.folder import words, write_json, write_weights
from engine.convert import CheckpointError, convert
from engine.gguf_file import GGUFFile
from reference.op import Array

HIDDEN, HEADS, GROUPS, SIZE, FFN, VOCAB = 24, 6, 2, 4, 40, 9
FALCON: dict[str, Any] = {
    "architectures": ["FalconForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_kv_heads": GROUPS,
    "new_decoder_architecture": True, "ffn_hidden_size": FFN,
}  # fmt: skip
OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "ffn_dim": FFN,
    "max_position_embeddings": 30,
}  # fmt: skip


def falcon() -> dict[str, Array]:
    """A block of the 40B's kind, each row of its fused tensor all of one number, the row's."""
    rows = (HEADS + 2 * GROUPS) * SIZE
    qkv = np.repeat(np.arange(rows, dtype=np.float32)[:, None], HIDDEN, axis=1)
    block = "transformer.h.0"
    return {
        "transformer.word_embeddings.weight": matrix(VOCAB, HIDDEN),
        **norm(f"{block}.ln_attn", 1),
        **norm(f"{block}.ln_mlp", 2),
        f"{block}.self_attention.query_key_value.weight": qkv,
        f"{block}.self_attention.dense.weight": matrix(HIDDEN, HIDDEN),
        f"{block}.mlp.dense_h_to_4h.weight": matrix(FFN, HIDDEN),
        f"{block}.mlp.dense_4h_to_h.weight": matrix(HIDDEN, FFN),
        **norm("transformer.ln_f", 3),
    }


def opt() -> dict[str, Array]:
    block = "model.decoder.layers.0"
    found = {
        "model.decoder.embed_tokens.weight": matrix(VOCAB, HIDDEN),
        "model.decoder.embed_positions.weight": matrix(32, HIDDEN),
        **norm(f"{block}.self_attn_layer_norm", 1),
        **norm(f"{block}.final_layer_norm", 2),
        **norm("model.decoder.final_layer_norm", 3),
    }
    for name, rows, elements in (
        *((f"self_attn.{n}", HIDDEN, HIDDEN) for n in ("q_proj", "k_proj", "v_proj", "out_proj")),
        ("fc1", FFN, HIDDEN),
        ("fc2", HIDDEN, FFN),
    ):
        found |= {f"{block}.{name}.weight": matrix(rows, elements)}
        found |= {f"{block}.{name}.bias": np.zeros(rows, np.float32)}
    return found


def matrix(rows: int, elements: int) -> Array:
    return np.random.default_rng(rows).standard_normal((rows, elements), np.float32)


def norm(name: str, value: float) -> dict[str, Array]:
    made = np.full(HIDDEN, value, np.float32)
    return {f"{name}.weight": made, f"{name}.bias": -made}


def written(folder: Path, config: Mapping[str, Any], weights: Mapping[str, Array]) -> Path:
    folder.mkdir()
    write_json(folder / "config.json", config)
    write_weights(folder, weights)
    write_json(folder / "tokenizer.json", words(VOCAB))
    return folder


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
