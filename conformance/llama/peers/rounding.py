"""The reference on a file that llama.cpp reads, with activations as exact or as rounded as its."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from conformance.llama.peers.checkpoint import Checkpoint
from engine.gguf.file import GGUFFile
from reference import rope_frequencies
from reference.formats import FORMATS
from reference.linear import linear
from reference.models.transformer import Shape, Weight, transformer
from reference.op import Array
from reference.quantise_activations import dequantise_activations, quantise_activations


def reference_logits(
    path: Path, checkpoint: Checkpoint, linear: Callable[[Array, Array, str], Array] = linear
) -> Array:
    """The logits after each of the checkpoint's tokens."""
    weights, vectors = {}, {}
    with GGUFFile(path) as file:
        for name, info in file.tensors.items():
            if len(info.dims) == 2:
                weights[name] = Weight(file.tensor(name).copy(), info.type_name)
            else:
                vectors[name] = file.tensor(name).copy().view(np.float32)
    shape = Shape(
        checkpoint.num_hidden_layers,
        checkpoint.num_attention_heads,
        checkpoint.num_key_value_heads,
        checkpoint.head_dim,
        checkpoint.rms_norm_eps,
        rope_frequencies.plain(checkpoint.head_dim, checkpoint.rope_theta),
    )
    return transformer(np.array(checkpoint.tokens(), np.int32), weights, vectors, shape, linear)


def as_llama_cpp(x: Array, weight: Array, format: str) -> Array:
    """linear, as llama.cpp's kernels round activations: to F16 for weights of that; for those in
    blocks to int8, in blocks as long as the format's, and those of 32 with a scale in F16."""
    if format in ("F32", "F16"):
        return linear(x.astype(np.float16) if format == "F16" else x, weight, format)
    if FORMATS[format].block == 32:
        q, scale, _ = quantise_activations(x)
        return linear(dequantise_activations(q, scale.astype(np.float16)), weight, format)
    return linear(_in_blocks_of_256(x.astype(np.float32)), weight, format)


def _in_blocks_of_256(x: Array) -> Array:
    """The value of largest magnitude becomes -127."""
    blocks = x.reshape(-1, 256)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    rate = np.float32(-127) / np.where(extreme == 0, np.float32(1), extreme)
    return np.asarray(np.rint(blocks * rate).clip(None, 127) / rate).reshape(x.shape)
