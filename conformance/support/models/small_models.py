"""Small random LLaMA files, written by the gguf package rather than our own code."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import gguf
import numpy as np

from reference import rope_frequencies
from reference.formats import FORMATS
from reference.models.transformer import Shape, Weight, transformer
from reference.op import Array

Tensors = tuple[dict[str, Weight], dict[str, Array]]  # matrices, and other tensors
Change = Callable[..., Tensors] | Mapping[str, Weight | Array | None]
# a name, and its dimensions ([experts], rows, elements)
Listed = tuple[str, int] | tuple[str, int, int] | tuple[str, int, int, int]
RMS = (
    "llama", "qwen2", "qwen3", "smollm3", "granite", "olmo2", "ernie4_5", "glm4", "phi3",
    "gemma", "gemma2", "gemma3", "gemma4", "qwen2moe", "qwen3moe", "olmoe", "granitemoe", "gpt-oss",
    "deepseek2", "qwen3next", "qwen35", "qwen35moe", "glm4moe", "minicpm3",
    "mistral3", "exaone4", "seed_oss", "arcee", "hunyuan-dense", "minicpm", "internlm2",
    "ernie4_5-moe", "exaone", "qwen2vl", "qwen3vl", "qwen3vlmoe", "dots1", "minimax-m2",
    "hunyuan-moe",
)  # fmt: skip
HEAD_NORMS = ("attn_q_norm", "attn_k_norm")  # vectors, or one for each head
FINER = ("attn_v", "ffn_down", "output")  # matrices of a finer format


def written(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Write the writer's contents to its file; returns the path."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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
    finer: str = ""  # the format of FINER, if different

    def tensors(self) -> Tensors:
        """Matrices in the model's format, and norms (with biases) in float32; all read-only."""
        weights, norms = self._made()
        return dict(weights), dict(norms)

    @lru_cache(64)  # noqa: B019 - quantising takes longer than a test's trials; a few MB at most
    def _made(self) -> Tensors:
        rng, finer = np.random.default_rng(self.seed), self.finer or self.format
        weights: dict[str, Weight] = {}
        norms: dict[str, Array] = {}
        for name, *dims in self.listed():
            *_, role, kind = name.split(".")
            if len(dims) >= 2 and role not in HEAD_NORMS:
                form = finer if role in FINER else self.format
                exact = role == "ffn_gate_inp" or kind == "bias"
                form = "F32" if exact else form  # routers and biases stay exact
                values = rng.standard_normal(dims, np.float32) * np.float32(dims[-1] ** -0.5)
                rows = FORMATS[form].random_like(values.reshape(-1, dims[-1]), rng)
                weights[name] = Weight(rows.reshape(*dims[:-1], -1), form)
            else:
                around = np.float32("norm" in role and kind == "weight")
                norms[name] = around + 0.1 * rng.standard_normal(dims, np.float32)
        for array in (*(weight.data for weight in weights.values()), *norms.values()):
            array.flags.writeable = False
        return weights, norms

    def listed(self) -> Iterator[Listed]:
        """The tensors by their GGUF names, in the order in which they are drawn."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "token_embd.weight", self.vocab, self.hidden
        yield "output_norm.weight", self.hidden
        for i in range(self.blocks):
            yield f"blk.{i}.attn_q.weight", q, self.hidden
            yield f"blk.{i}.attn_k.weight", kv, self.hidden
            yield f"blk.{i}.attn_v.weight", kv, self.hidden
            yield f"blk.{i}.attn_output.weight", self.hidden, q
            yield f"blk.{i}.ffn_gate.weight", self.ffn, self.hidden
            yield f"blk.{i}.ffn_up.weight", self.ffn, self.hidden
            yield f"blk.{i}.ffn_down.weight", self.hidden, self.ffn
            yield f"blk.{i}.attn_norm.weight", self.hidden
            yield f"blk.{i}.ffn_norm.weight", self.hidden
            if self.biases:
                sizes = {"q": q, "k": kv, "v": kv, "output": self.hidden}
                yield from ((f"blk.{i}.attn_{name}.bias", size) for name, size in sizes.items())
        if not self.tied:
            yield "output.weight", self.vocab, self.hidden

    @property
    def rope_dims(self) -> int:
        """Dimensions of a head with RoPE."""
        return self.head_dim

    def shape(self) -> Shape:
        """The reference transformer's sizes."""
        frequencies = rope_frequencies.plain(self.rope_dims, 10000.0)
        return Shape(self.blocks, self.heads, self.kv_heads, self.head_dim, 1e-5, frequencies)

    def formula(self) -> Callable[..., Array]:
        """The reference's forward pass."""
        return transformer

    def write(self, path: Path, **metadata: float | str) -> Path:
        """The model as a GGUF file with a vocabulary of byte-sized words; `metadata` adds keys of
        the architecture (dots as double underscores)."""
        writer = gguf.GGUFWriter(path, self.architecture)
        self._sizes(writer)
        for key, value in metadata.items():
            name = f"{self.architecture}." + key.replace("__", ".")
            if isinstance(value, str):
                writer.add_string(name, value)
            elif isinstance(value, bool):
                writer.add_bool(name, value)
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
        return written(writer, path)

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_block_count(self.blocks)
        writer.add_feed_forward_length(self.ffn)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_key_length(self.head_dim)
        writer.add_value_length(self.head_dim)
        writer.add_rope_dimension_count(self.rope_dims)
        rms = self.architecture in RMS
        (writer.add_layer_norm_rms_eps if rms else writer.add_layer_norm_eps)(1e-5)

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


def tampered(small: Small, change: Change) -> Small:
    """The model with modified tensors: by a function of its matrices and other tensors, or by name,
    with a replacement or None."""

    def replaced(weights: dict[str, Weight], norms: dict[str, Array]) -> Tensors:
        for name, tensor in change.items():  # type: ignore[union-attr]
            weights.pop(name, None)
            norms.pop(name, None)
            if isinstance(tensor, Weight):
                weights[name] = tensor
            elif tensor is not None:
                norms[name] = tensor
        return weights, norms

    made = change if callable(change) else replaced
    kind = type("Tampered", (type(small),), {"tensors": lambda _: made(*small.tensors())})
    found: Small = kind(**{name: getattr(small, name) for name in small.__dataclass_fields__})
    return found
