"""Models with random weights, of the size and speed of real ones.

    python -m data.random_model OUT --type Q4_0 --shape tinyllama-1.1b --vocab VOCABULARY.gguf
    python -m data.random_model OUT --shape relutinyllama-1.1b --rank 256 --active 0.1
    python -m data.random_model OUT --type F16 --shape qwen3-0.6b --vocab VOCABULARY.gguf

Shapes are those of LLaMA in shapes.toml and those of other architectures in families.toml. A shape
with a ReGLU gate becomes a sparse model in PowerInfer's format: predictors predict the given share
of neurons in every block, at random, independently of which are active.

Matrices are normal with a standard deviation of 1 / sqrt(fan_in); norms are within a tenth of 1,
and a scan's decay factors are below 1. These, routers and the inputs of scans and convolutions stay
F32; rows that are not a multiple of a format's blocks are in F16. One seed gives the same weights
in every type, up to that type's rounding. The vocabulary is any GGUF file's, or synthetic.

The file is written next to OUT and renamed when complete. Exit status: 0 done, 1 failed with one
line on stderr, 2 wrong usage.
"""

import argparse
import math
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from gguf import GGML_QUANT_VERSION, LlamaFileType, TokenType

from data.shapes import FILE, ModelShape, read
from engine.atomic_write import OutputError
from engine.gguf import writer as gw
from engine.gguf.file import GGUFError, GGUFFile, ValueType
from engine.metadata.config import config_of
from engine.models.table import FAMILIES
from engine.recurrent import is_small
from engine.shell.terminal import bytes_bar
from engine.sparsity import MAGIC, THRESHOLD
from reference.formats import FORMATS, Format
from reference.formats.format import Bytes

FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "BF16": LlamaFileType.MOSTLY_BF16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
    "Q4_0": LlamaFileType.MOSTLY_Q4_0,
}
TOKENS = "tokenizer.ggml.tokens"
SLICE = 2**20  # weights generated at a time, which stay in the cache until they are quantised

Dims = tuple[int, ...]
Metadata = Mapping[str, tuple[ValueType, Any]]


SHAPES = {  # shapes of data/shapes.toml with the plain `llama` architecture
    name: shape
    for name, shape in read().models.items()
    if shape.rope == "rope_norm" and shape.gate in ("swiglu", "reglu")
}
OTHERS: dict[str, dict[str, Any]] = tomllib.loads(FILE.with_name("families.toml").read_text())
EPS, ROPE_BASE = 1e-5, 10000.0


@dataclass(frozen=True, slots=True)
class Predictors:
    """Predictors of a rank, which predict this share of the neurons.

    For normal inputs h, the output of ReLU, has the norm sqrt(rank / 2) and the sum rank / sqrt(2
    pi) of their standard deviation, whatever that is. So a normal row of fc2 with a mean `less`
    standard deviations below zero gives a logit above 0 as often as a normal number exceeds less *
    sqrt(rank / pi): for every norm of h, and so in every block.
    """

    rank: int
    active: float

    @property
    def less(self) -> float:
        return NormalDist().inv_cdf(1 - self.active) / math.sqrt(self.rank / math.pi)


def main() -> int:
    options = read_options()
    try:
        vocabulary = read_vocabulary(options.vocab) if options.vocab else made_up_vocabulary()
        predictors = Predictors(options.rank, options.active)
        form, seed = FORMATS[options.type], options.seed
        with bytes_bar(options.out.name) as progress:
            write(options.out, options.shape, vocabulary, form, predictors, seed, progress)
    except (GGUFError, OutputError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m data.random_model",
        description="Write a model with random weights as a GGUF file.",
    )
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--type", choices=FILE_TYPES, default="F16", help="of the matrices")
    parser.add_argument("--shape", choices=[*SHAPES, *OTHERS], default="tinyllama-1.1b")
    parser.add_argument("--vocab", type=Path, metavar="GGUF", help="whose vocabulary to copy")
    parser.add_argument("--rank", type=int, default=256, help="of predictors (%(default)s)")
    parser.add_argument(
        "--active", type=float, default=0.1, help="share of neurons they name (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="0 or more (%(default)s)")
    options = parser.parse_args()
    if options.seed < 0:
        parser.error(f"argument --seed: {options.seed} is below 0")
    if options.rank < 1 or options.rank % 32:
        parser.error(f"argument --rank: {options.rank} is no multiple of 32")
    if not 0 < options.active < 1:
        parser.error(f"argument --active: {options.active} is not between 0 and 1")
    return options


def write(
    out: Path,
    shape_name: str,
    vocabulary: Metadata,
    weight_format: Format,
    predictors: Predictors,
    seed: int,
    report: Callable[[int, int], None],
) -> None:
    """Write the whole file, one slice in memory at a time; `report` gets bytes done and total."""
    vocab, magic = len(vocabulary[TOKENS][1]), "GGUF"
    if shape_name in OTHERS:
        own, listed = other(OTHERS[shape_name], vocab)
    else:
        shape = SHAPES[shape_name]
        own, listed = shape_keys(shape), dict(tensors(shape, vocab, predictors.rank))
        if shape.gate == "reglu":
            magic, own[THRESHOLD] = MAGIC, gw.f32(0.0)
    keys: dict[str, tuple[ValueType, Any]] = {
        "general.name": gw.text(f"Random {shape_name} {weight_format.name}, seed {seed}"),
        "general.file_type": gw.u32(FILE_TYPES[weight_format.name]),
        "general.quantization_version": gw.u32(GGML_QUANT_VERSION),
        **own,
        f"{own['general.architecture'][1]}.vocab_size": gw.u32(vocab),
        **vocabulary,
    }
    plan = [
        gw.NewTensor(name, type_of(name, dims, weight_format), dims)
        for name, dims in listed.items()
    ]
    total = sum(tensor.n_bytes for tensor in plan)

    def pieces() -> Iterator[Bytes]:
        rng, done = np.random.default_rng(seed), 0
        for tensor in plan:
            form = FORMATS[tensor.type_name]
            less = predictors.less if tensor.name.endswith(".fc2.weight") else 0.0
            fan_in = tensor.dims[0 if tensor.name.endswith("_t.weight") else -1]
            for piece in drawn(rng, tensor, fan_in, less, form):
                yield piece
                done += piece.nbytes
                report(done, total)

    gw.write_gguf(out, keys, plan, pieces(), magic=magic)


def type_of(name: str, dims: Dims, wanted: Format) -> str:
    """The format of a tensor in the file."""
    if len(dims) == 1 or is_small(name) or name.endswith("ffn_gate_inp.weight"):
        return "F32"
    return "F16" if dims[-1] % wanted.block else wanted.name


def other(sizes: Mapping[str, Any], vocab: int) -> tuple[Metadata, dict[str, Dims]]:
    """A model of another architecture than LLaMA: its keys and the tensors that it needs."""
    architecture = sizes["architecture"]
    values = {"general.architecture": architecture}
    for key, value in sizes.items():
        named = value.items() if isinstance(value, dict) else [(None, value)]
        if key not in ("architecture", "tied"):
            values |= {".".join(filter(None, (architecture, key, k))): v for k, v in named}
    config = config_of(values, vocab)
    needed = FAMILIES[architecture].expected_tensors(config)
    if not sizes["tied"]:
        needed["output.weight"] = (vocab, config.hidden)
    kinds = {str: gw.text, int: gw.u32, float: gw.f32}
    keys = {key: kinds[type(value)](value) for key, value in values.items()}
    return keys, {name: dims[1:] if dims[0] == 1 else dims for name, dims in needed.items()}


def tensors(shape: ModelShape, n_tokens: int, rank: int) -> Iterator[tuple[str, Dims]]:
    """Names and dims (rows, elements) in the file's order; norms have one dimension."""
    hidden, ffn = shape.hidden, shape.ffn
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "token_embd.weight", (n_tokens, hidden)
    for layer in range(shape.blocks):
        yield f"blk.{layer}.attn_norm.weight", (hidden,)
        yield f"blk.{layer}.attn_q.weight", (q, hidden)
        yield f"blk.{layer}.attn_k.weight", (kv, hidden)
        yield f"blk.{layer}.attn_v.weight", (kv, hidden)
        yield f"blk.{layer}.attn_output.weight", (hidden, q)
        yield f"blk.{layer}.ffn_norm.weight", (hidden,)
        yield f"blk.{layer}.ffn_gate.weight", (ffn, hidden)
        yield f"blk.{layer}.ffn_up.weight", (ffn, hidden)
        if shape.gate == "reglu":
            yield f"blk.{layer}.ffn_down_t.weight", (ffn, hidden)
            yield f"blk.{layer}.fc1.weight", (rank, hidden)
            yield f"blk.{layer}.fc2.weight", (ffn, rank)
        else:
            yield f"blk.{layer}.ffn_down.weight", (hidden, ffn)
    yield "output_norm.weight", (hidden,)
    yield "output.weight", (n_tokens, hidden)


def drawn(
    rng: np.random.Generator, tensor: gw.NewTensor, fan_in: int, less: float, form: Format
) -> Iterator[Bytes]:
    """A norm's elements near 1, those of a scan's factor near -1, or a matrix's with a variance of
    1 / fan_in and a mean of `less` standard deviations below zero: uint8 pieces."""
    dims, factor = tensor.dims, tensor.name.endswith("ssm_a")
    if len(dims) == 1 or factor:
        around = np.float32(-1 if factor else 1)
        yield form.quantise(around + np.float32(0.1) * rng.standard_normal(dims, np.float32))
        return
    rows, elements = math.prod(dims[:-1]), dims[-1]
    deviation, step = np.float32(1 / math.sqrt(fan_in)), max(1, SLICE // elements)
    for first in range(0, rows, step):
        count = min(step, rows - first)
        values = rng.standard_normal((count, elements), np.float32) - np.float32(less)
        yield form.quantise(deviation * values)


def shape_keys(shape: ModelShape) -> dict[str, tuple[ValueType, Any]]:
    return {
        "general.architecture": gw.text("llama"),
        "llama.context_length": gw.u32(shape.context),
        "llama.embedding_length": gw.u32(shape.hidden),
        "llama.block_count": gw.u32(shape.blocks),
        "llama.feed_forward_length": gw.u32(shape.ffn),
        "llama.attention.head_count": gw.u32(shape.heads),
        "llama.attention.head_count_kv": gw.u32(shape.kv_heads),
        "llama.attention.key_length": gw.u32(shape.head_dim),
        "llama.attention.value_length": gw.u32(shape.head_dim),
        "llama.rope.dimension_count": gw.u32(shape.head_dim),
        "llama.rope.freq_base": gw.f32(ROPE_BASE),
        "llama.attention.layer_norm_rms_epsilon": gw.f32(EPS),
    }


def read_vocabulary(path: Path) -> Metadata:
    """A GGUF file's tokenizer keys. Raises `GGUFError`."""
    with GGUFFile(path) as file:
        vocabulary = {
            key: (file.value_types[key], value)
            for key, value in file.metadata.items()
            if key.startswith("tokenizer.")
        }
    if not isinstance(file.metadata.get(TOKENS), list) or TOKENS not in vocabulary:
        raise GGUFError(f"{path}: key '{TOKENS}': there is no vocabulary")
    return vocabulary


def made_up_vocabulary(n_tokens: int = 32000) -> Metadata:
    """A synthetic SentencePiece vocabulary: three control tokens, all bytes, random words."""
    control = ["<unk>", "<s>", "</s>"]
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [f"▁w{i}" for i in range(n_tokens - len(control) - len(in_bytes))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    kinds += [TokenType.BYTE] * len(in_bytes) + [TokenType.NORMAL] * len(words)
    return {
        "tokenizer.ggml.model": gw.text("llama"),
        TOKENS: gw.texts(control + in_bytes + words),
        "tokenizer.ggml.scores": gw.f32s([0.0] * n_tokens),
        "tokenizer.ggml.token_type": gw.i32s(kinds),
        "tokenizer.ggml.unknown_token_id": gw.u32(0),
        "tokenizer.ggml.bos_token_id": gw.u32(1),
        "tokenizer.ggml.eos_token_id": gw.u32(2),
    }


if __name__ == "__main__":
    sys.exit(main())
