"""Attention over pages and cells on the GPU: in chunks and tiles as in attention.py, a text's pages
before its cells."""

from collections.abc import Callable

from kernels.cuda.attention.attention import (
    CHUNK,
    PLAIN,
    chunks,
    merging,
    of_few,
    of_many,
    partials,
)
from kernels.cuda.runtime.launch import Grid, Launch
from reference.attention import attention_kivi, attention_minicache
from reference.formats import kivi, minicache
from reference.op import Op, Shape

MERGE_SIGNATURE = (
    "spans: i32[tokens 3], sinks: f32[heads], packed: i32[tokens],"
    " scratch: f32[tokens heads head_dim capacity slots] -> out: f32[tokens heads head_dim]"
)


def chunks_of_kivi(shape: Shape) -> int:
    """Chunks of all pages that a token may see, and then of cells."""
    return -(-shape["slots"] * kivi.GROUP // CHUNK) + chunks(shape)


def chunks_of_minicache(shape: Shape) -> int:
    return shape["slots"] * minicache.GROUP // CHUNK + chunks(shape)


def partials_of_kivi(shape: Shape) -> int:
    """Floats of scratch."""
    return partials(shape, chunks_of_kivi)


def partials_of_minicache(shape: Shape) -> int:
    return partials(shape, chunks_of_minicache)


def launches(op: Op, few: Callable[[Shape], Grid]) -> tuple[Launch, ...]:
    name, source = op.name, f"{op.name}.cu"
    own = op.signature.replace("kv_heads*head_dim", "kv_heads head_dim")
    own = own.replace(" -> ", ", scratch: f32[tokens heads] -> ")
    return (
        Launch(source, f"{name}_few", own, few, "F16", config=PLAIN),
        Launch(source, f"{name}_merge", MERGE_SIGNATURE, merging, "F16", config=PLAIN),
        Launch(source, f"{name}_many", own, of_many("F16"), "F16", config=PLAIN),
    )


KIVI = launches(attention_kivi.OP, of_few("F16", chunks_of_kivi))
MINICACHE = launches(attention_minicache.OP, of_few("F16", chunks_of_minicache))
