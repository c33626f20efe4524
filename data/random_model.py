"""LLaMA models with random weights: nothing to say, but as large and as slow as the real ones.

    python -m data.random_model OUT --type Q4_0 --shape tinyllama-1.1b --vocab VOCABULARY.gguf

Matrices are normal with a deviation of 1 / sqrt(fan_in); norms are 1 give or take a tenth and stay
F32. One seed gives the same weights in every type, up to that type's rounding. The vocabulary is
any GGUF file's, or made up.

The file is written beside OUT and takes its name when it is complete. Exit status: 0 done, 1 failed
with one line on stderr, 2 wrong usage.
"""

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    GGML_QUANT_VERSION,
    GGMLQuantizationType,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    TokenType,
)
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from data.shapes import ModelShape, read
from engine.gguf_file import GGUFError, GGUFFile, ValueType
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
SLICE = 2**20  # weights drawn at a time: few enough to stay in the cache until they are quantised

Dims = tuple[int, ...]
Metadata = Mapping[str, tuple[ValueType, Any]]


SHAPES = {  # of data/shapes.toml, those that are of the plain `llama` architecture
    name: shape
    for name, shape in read().models.items()
    if (shape.rope, shape.gate) == ("rope_norm", "swiglu")
}
EPS, ROPE_BASE = 1e-5, 10000.0


def main() -> int:
    options = read_options()
    if options.out.exists() and not options.out.is_file():  # the rename would replace a device
        return failed(f"{options.out}: cannot be written: it is there and is not a file")
    try:
        vocabulary = read_vocabulary(options.vocab) if options.vocab else made_up_vocabulary()
        with progress_bar() as progress:
            task = progress.add_task(options.out.name)
            write(
                options.out,
                options.shape,
                vocabulary,
                FORMATS[options.type],
                options.seed,
                lambda done, total: progress.update(task, completed=done, total=total),
            )
    except GGUFError as error:
        return failed(str(error))
    except OSError as error:
        return failed(f"{options.out}: cannot be written: {(error.strerror or str(error)).lower()}")
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m data.random_model",
        description="Write a LLaMA model with random weights as a GGUF file.",
    )
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--type", choices=FILE_TYPES, default="F16", help="of the matrices")
    parser.add_argument("--shape", choices=SHAPES, default="tinyllama-1.1b")
    parser.add_argument("--vocab", type=Path, metavar="GGUF", help="whose vocabulary to copy")
    parser.add_argument("--seed", type=int, default=0, help="0 or more (%(default)s)")
    options = parser.parse_args()
    if options.seed < 0:
        parser.error(f"argument --seed: {options.seed} is below 0")
    return options


def progress_bar() -> Progress:
    """Bytes, their rate and the time left, on a terminal's stderr only."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def failed(line: str) -> int:
    print(line, file=sys.stderr)
    return 1


def write(
    out: Path,
    shape_name: str,
    vocabulary: Metadata,
    weight_format: Format,
    seed: int,
    report: Callable[[int, int], None],
) -> None:
    """Write the whole file, one tensor in memory at a time; `report` gets bytes done and total."""
    shape = SHAPES[shape_name]
    part = out.with_name(out.name + ".part")
    writer = GGUFWriter(part, "llama")
    try:
        writer.add_name(f"Random {shape_name} {weight_format.name}, seed {seed}")
        writer.add_file_type(FILE_TYPES[weight_format.name])
        writer.add_quantization_version(GGML_QUANT_VERSION)
        add_shape(writer, shape)
        add_vocabulary(writer, vocabulary)
        n_tokens = len(vocabulary[TOKENS][1])
        plan = [
            (name, dims, FORMATS["F32"] if len(dims) == 1 else weight_format)
            for name, dims in tensors(shape, n_tokens)
        ]
        total = sum(math.prod(stored_dims(dims, form)) for _, dims, form in plan)
        for name, dims, form in plan:
            stored = stored_dims(dims, form)
            kind = GGMLQuantizationType(form.gguf_type)
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), math.prod(stored), kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()

        rng = np.random.default_rng(seed)
        done = 0
        for _, dims, form in plan:
            data = norm(rng, dims, form) if len(dims) == 1 else matrix(rng, dims, form)
            writer.write_tensor_data(data)
            done += data.nbytes
            report(done, total)
        writer.close()
        part.replace(out)
    finally:
        writer.close()
        part.unlink(missing_ok=True)


def tensors(shape: ModelShape, n_tokens: int) -> Iterator[tuple[str, Dims]]:
    """Names and dims (rows, elements) in the file's order; one dimension is a norm."""
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
        yield f"blk.{layer}.ffn_down.weight", (hidden, ffn)
    yield "output_norm.weight", (hidden,)
    yield "output.weight", (n_tokens, hidden)


def stored_dims(dims: Dims, form: Format) -> Dims:
    """(..., elements) -> (..., row_bytes)."""
    return (*dims[:-1], form.row_bytes(dims[-1]))


def norm(rng: np.random.Generator, dims: Dims, form: Format) -> Bytes:
    """uint8 [row_bytes] of elements near 1."""
    return form.quantise(1 + np.float32(0.1) * rng.standard_normal(dims, np.float32))


def matrix(rng: np.random.Generator, dims: Dims, form: Format) -> Bytes:
    """uint8 [rows, row_bytes] of normal elements with a variance of 1 / fan_in."""
    rows, fan_in = dims
    stored = np.empty(stored_dims(dims, form), np.uint8)
    deviation = np.float32(1 / math.sqrt(fan_in))
    step = max(1, SLICE // fan_in)
    for first in range(0, rows, step):
        part = stored[first : first + step]
        part[:] = form.quantise(deviation * rng.standard_normal((len(part), fan_in), np.float32))
    return stored


def add_shape(writer: GGUFWriter, shape: ModelShape) -> None:
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.blocks)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPS)


def add_vocabulary(writer: GGUFWriter, vocabulary: Metadata) -> None:
    writer.add_vocab_size(len(vocabulary[TOKENS][1]))
    for key, (value_type, value) in vocabulary.items():
        writer.add_key_value(key, as_stored(value), value_type.kind, value_type.element)


def as_stored(value: Any) -> Any:
    """Texts as the bytes they were read from, UTF-8 or not; anything else as it is."""
    if isinstance(value, list):
        return [as_stored(element) for element in value]
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def read_vocabulary(path: Path) -> Metadata:
    """What a GGUF file says of its tokenizer. Raises `GGUFError`."""
    with GGUFFile(path) as file:
        vocabulary = {
            key: (file.value_types[key], value)
            for key, value in file.metadata.items()
            if key.startswith("tokenizer.") and value != []  # the writer has no empty arrays
        }
    if not isinstance(file.metadata.get(TOKENS), list) or TOKENS not in vocabulary:
        raise GGUFError(f"{path}: key '{TOKENS}': there is no vocabulary")
    return vocabulary


def made_up_vocabulary(n_tokens: int = 32000) -> Metadata:
    """A SentencePiece vocabulary: three control tokens, all bytes, then words that mean nothing."""
    control = ["<unk>", "<s>", "</s>"]
    in_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [f"▁w{i}" for i in range(n_tokens - len(control) - len(in_bytes))]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    kinds += [TokenType.BYTE] * len(in_bytes) + [TokenType.NORMAL] * len(words)
    kind = GGUFValueType
    return {
        "tokenizer.ggml.model": (ValueType(kind.STRING, None), "llama"),
        TOKENS: (ValueType(kind.ARRAY, kind.STRING), control + in_bytes + words),
        "tokenizer.ggml.scores": (ValueType(kind.ARRAY, kind.FLOAT32), [0.0] * n_tokens),
        "tokenizer.ggml.token_type": (ValueType(kind.ARRAY, kind.INT32), kinds),
        "tokenizer.ggml.unknown_token_id": (ValueType(kind.UINT32, None), 0),
        "tokenizer.ggml.bos_token_id": (ValueType(kind.UINT32, None), 1),
        "tokenizer.ggml.eos_token_id": (ValueType(kind.UINT32, None), 2),
    }


if __name__ == "__main__":
    sys.exit(main())
