"""From a Hugging Face checkpoint to a GGUF file: a second hand at what `assay convert` does."""

from pathlib import Path

import gguf
import numpy as np

from conformance.llama.peers.checkpoint import SPECIAL, Checkpoint
from reference import rope_frequencies
from reference.formats import FORMATS
from reference.op import Array

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def export(checkpoint: Checkpoint, path: Path, format: str = "F32") -> Path:
    """Matrices in `format`, vectors in F32. In a format that is only read, matrices are others as
    large."""
    writer = gguf.GGUFWriter(path, "llama")
    write_shape(writer, checkpoint)
    write_vocabulary(writer, checkpoint.vocab_size)
    if divisors := rope_divisors(checkpoint):
        writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))
    rng = np.random.default_rng(checkpoint.seed)
    for name, weight in checkpoint.weights().items():
        rows = neighbours(weight, checkpoint.head_dim) if turns(name) else weight
        if weight.ndim == 1:
            writer.add_tensor(gguf_name(name), rows)
        else:
            kind = gguf.GGMLQuantizationType[format]
            writer.add_tensor(gguf_name(name), FORMATS[format].like(rows, rng), raw_dtype=kind)
    write(writer)
    return path


def write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def decoded(source: Path, path: Path) -> Path:
    """The same model with every matrix in F32, decoded by the gguf package."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != gguf.Keys.General.ARCHITECTURE:
            writer.add_key_value(key, field.contents(), *field.types[:2])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.dequantize(tensor.data, tensor.tensor_type))
    write(writer)
    return path


def gguf_name(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight."""
    module, _, kind = name.rpartition(".")
    if module.startswith("model.layers."):
        _, _, layer, part = module.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.{kind}"
    return f"{NAMES[module]}.{kind}"


def turns(name: str) -> bool:
    """Whether rope turns what this weight or bias gives."""
    return ".q_proj." in name or ".k_proj." in name


def neighbours(rows: Array, head_dim: int) -> Array:
    """Rows of each head from pairs (i, i + head_dim / 2), as Hugging Face's rope has them, to
    pairs (2i, 2i + 1), as GGUF's llama does."""
    heads = len(rows) // head_dim
    halves = rows.reshape(heads, 2, head_dim // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def write_shape(writer: gguf.GGUFWriter, checkpoint: Checkpoint) -> None:
    writer.add_context_length(checkpoint.max_position_embeddings)
    writer.add_embedding_length(checkpoint.hidden_size)
    writer.add_block_count(checkpoint.num_hidden_layers)
    writer.add_feed_forward_length(checkpoint.intermediate_size)
    writer.add_head_count(checkpoint.num_attention_heads)
    writer.add_head_count_kv(checkpoint.num_key_value_heads)
    writer.add_key_length(checkpoint.head_dim)
    writer.add_value_length(checkpoint.head_dim)
    writer.add_rope_dimension_count(checkpoint.head_dim)
    writer.add_layer_norm_rms_eps(checkpoint.rms_norm_eps)
    writer.add_rope_freq_base(checkpoint.rope_theta)
    scaling = checkpoint.rope_scaling or {}
    if scaling.get("rope_type") not in ("linear", "yarn"):
        return  # llama3's is the tensor rope_freqs
    writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
    writer.add_rope_scaling_factor(scaling["factor"])
    if "original_max_position_embeddings" in scaling:
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
    if "attention_factor" in scaling:  # GGUF's multiplies YaRN's own, Hugging Face's replaces it
        own = rope_frequencies.yarn_magnitude(scaling["factor"])
        writer.add_rope_scaling_attn_factors(scaling["attention_factor"] / own)
    for key in ("beta_fast", "beta_slow"):
        if key in scaling:
            writer.add_float32(f"llama.rope.scaling.yarn_{key}", scaling[key])


def rope_divisors(checkpoint: Checkpoint) -> list[float]:
    scaling = checkpoint.rope_scaling or {}
    if scaling.get("rope_type") != "llama3":
        return []
    return rope_frequencies.llama3_divisors(
        rope_frequencies.plain(checkpoint.head_dim, checkpoint.rope_theta),
        scaling["factor"],
        scaling["low_freq_factor"],
        scaling["high_freq_factor"],
        scaling["original_max_position_embeddings"],
    ).tolist()


def write_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Words that mean nothing, as SentencePiece spells them."""
    words = [f"▁w{i}" for i in range(SPECIAL, size)]
    kind = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *words])
    writer.add_token_scores([0.0] * size)
    writer.add_token_types([kind.UNKNOWN, kind.CONTROL, kind.CONTROL] + [kind.NORMAL] * len(words))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
