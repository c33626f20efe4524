"""Checkpoints of some families, one block each, whose values identify their source."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from conformance.llama.peers.folder import words, write_json, write_weights
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
NEOX: dict[str, Any] = {
    "architectures": ["GPTNeoXForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "num_hidden_layers": 1, "num_attention_heads": HEADS, "intermediate_size": FFN,
    "rotary_pct": 0.5, "rotary_emb_base": 5000,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCAB, "n_embd": HIDDEN, "n_layer": 1,
    "n_head": HEADS, "n_inner": FFN, "n_positions": 30,
}  # fmt: skip


def falcon() -> dict[str, Array]:
    """A block of the 40B's kind; each row of its fused tensor holds the row's number."""
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


def neox() -> dict[str, Array]:
    """A block; each row of its fused tensor and its bias holds the row's number."""
    rows, block = np.arange(3 * HIDDEN, dtype=np.float32), "gpt_neox.layers.0"
    return {
        "gpt_neox.embed_in.weight": matrix(VOCAB, HIDDEN),
        **norm(f"{block}.input_layernorm", 1),
        **norm(f"{block}.post_attention_layernorm", 2),
        f"{block}.attention.query_key_value.weight": np.repeat(rows[:, None], HIDDEN, axis=1),
        f"{block}.attention.query_key_value.bias": rows,
        f"{block}.attention.dense.weight": matrix(HIDDEN, HIDDEN),
        f"{block}.attention.dense.bias": np.zeros(HIDDEN, np.float32),
        f"{block}.attention.rotary_emb.inv_freq": np.ones(1, np.float32),
        f"{block}.mlp.dense_h_to_4h.weight": matrix(FFN, HIDDEN),
        f"{block}.mlp.dense_h_to_4h.bias": np.zeros(FFN, np.float32),
        f"{block}.mlp.dense_4h_to_h.weight": matrix(HIDDEN, FFN),
        f"{block}.mlp.dense_4h_to_h.bias": np.zeros(HIDDEN, np.float32),
        **norm("gpt_neox.final_layer_norm", 3),
        "embed_out.weight": matrix(VOCAB, HIDDEN),
    }


def gpt2() -> dict[str, Array]:
    """A block with the first checkpoints' names, a mask buffer included; matrices are numbered."""
    found = {
        "wte.weight": matrix(VOCAB, HIDDEN),
        "wpe.weight": matrix(30, HIDDEN),
        **norm("h.0.ln_1", 1),
        "h.0.attn.bias": np.ones((1, 1, 30, 30), np.float32),
        **norm("h.0.ln_2", 2),
        **norm("ln_f", 3),
    }
    for name, inputs, outputs in (
        ("attn.c_attn", HIDDEN, 3 * HIDDEN),
        ("attn.c_proj", HIDDEN, HIDDEN),
        ("mlp.c_fc", HIDDEN, FFN),
        ("mlp.c_proj", FFN, HIDDEN),
    ):
        numbers = np.arange(inputs * outputs, dtype=np.float32).reshape(inputs, outputs)
        found |= {f"h.0.{name}.weight": numbers, f"h.0.{name}.bias": numbers[0]}
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
