"""Small random LLaMA files, written by the tests' own hand with the gguf package."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import gguf
import numpy as np

from reference import rope_frequencies
from reference.formats import FORMATS
from reference.op import Array
from reference.transformer import Shape, Weight


@dataclass(frozen=True, slots=True)
class Small:
    """Sizes of a random model; the defaults are the smallest that every format allows."""

    blocks: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    vocab: int = 70
    context: int = 128
    tied: bool = False
    format: str = "F32"
    biases: bool = False
    activation: str = "swiglu"
    architecture: str = "llama"
    seed: int = 0
    finer: str = (
        ""  # the format of values, of what leads out of the FFN and of the output, if another
    )

    def tensors(self) -> tuple[dict[str, Weight], dict[str, Array]]:
        """Matrices in the model's format, and norms (with biases) in float32; all read-only."""
        weights, norms = self._made()
        return dict(weights), dict(norms)

    @lru_cache(64)  # noqa: B019 - quantising takes longer than a test's trials; a few MB at most
    def _made(self) -> tuple[dict[str, Weight], dict[str, Array]]:
        rng = np.random.default_rng(self.seed)
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim

        def matrix(rows: int, elements: int, format: str = self.format) -> Weight:
            values = rng.standard_normal((rows, elements), np.float32) * elements**-0.5
            return Weight(FORMATS[format].like(values.astype(np.float32), rng), format)

        def vector(size: int, around: float) -> Array:
            return np.float32(around) + 0.1 * rng.standard_normal(size, np.float32)

        finer = self.finer or self.format
        weights = {"token_embd.weight": matrix(self.vocab, self.hidden)}
        norms = {"output_norm.weight": vector(self.hidden, 1)}
        for i in range(self.blocks):
            block = f"blk.{i}"
            weights |= {
                f"{block}.attn_q.weight": matrix(q, self.hidden),
                f"{block}.attn_k.weight": matrix(kv, self.hidden),
                f"{block}.attn_v.weight": matrix(kv, self.hidden, finer),
                f"{block}.attn_output.weight": matrix(self.hidden, q),
                f"{block}.ffn_gate.weight": matrix(self.ffn, self.hidden),
                f"{block}.ffn_up.weight": matrix(self.ffn, self.hidden),
                f"{block}.ffn_down.weight": matrix(self.hidden, self.ffn, finer),
            }
            norms |= {
                f"{block}.attn_norm.weight": vector(self.hidden, 1),
                f"{block}.ffn_norm.weight": vector(self.hidden, 1),
            }
            if self.biases:
                norms |= {
                    f"{block}.attn_q.bias": vector(q, 0),
                    f"{block}.attn_k.bias": vector(kv, 0),
                    f"{block}.attn_v.bias": vector(kv, 0),
                    f"{block}.attn_output.bias": vector(self.hidden, 0),
                }
        if not self.tied:
            weights["output.weight"] = matrix(self.vocab, self.hidden, finer)
        for array in (*(weight.data for weight in weights.values()), *norms.values()):
            array.flags.writeable = False
        return weights, norms

    def shape(self) -> Shape:
        """What the reference transformer wants to know."""
        frequencies = rope_frequencies.plain(self.head_dim, 10000.0)
        return Shape(self.blocks, self.heads, self.kv_heads, self.head_dim, 1e-5, frequencies)

    def write(self, path: Path, **metadata: float | str) -> Path:
        """The model as a GGUF file with a vocabulary of byte-sized words; `metadata` adds keys of
        the architecture (dots as double underscores)."""
        writer = gguf.GGUFWriter(path, self.architecture)
        self._sizes(writer)
        for key, value in metadata.items():
            name = f"{self.architecture}." + key.replace("__", ".")
            if isinstance(value, str):
                writer.add_string(name, value)
            elif isinstance(value, int):
                writer.add_uint32(name, value)
            else:
                writer.add_float32(name, value)
        self._vocabulary(writer)
        weights, norms = self.tensors()
        for name, weight in weights.items():
            kind = gguf.GGMLQuantizationType[weight.format]
            writer.add_tensor(name, weight.data, raw_dtype=kind)
        for name, vector in norms.items():
            writer.add_tensor(name, vector)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.blocks)
        writer.add_feed_forward_length(self.ffn)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
        writer.add_rope_dimension_count(self.head_dim)
        llama = self.architecture == "llama"
        (writer.add_layer_norm_rms_eps if llama else writer.add_layer_norm_eps)(1e-5)

    def _vocabulary(self, writer: gguf.GGUFWriter) -> None:
        """<unk>, <s>, </s>, then letters as SentencePiece has them."""
        words = (f"\N{LOWER ONE EIGHTH BLOCK}{i}" for i in range(3, self.vocab))
        tokens = ["<unk>", "<s>", "</s>", *words]
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * 3 + [-float(i) for i in range(3, self.vocab)])
        writer.add_token_types([2, 3, 3] + [1] * (self.vocab - 3))
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
