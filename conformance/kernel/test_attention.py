"""How attention kernels divide a token's cells into chunks, and how they are called."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance.support.machine_kernels import each, inputs_of, run
from kernels.call import bind, call
from kernels.cpu.attention.attention import FEW
from kernels.cpu.attention.attention_sums import CHUNK
from kernels.cuda.attention import attention as cuda
from kernels.judge import compare
from kernels.kernel import Kernel
from kernels.shapes import ShapeError, empty_outputs, sizes
from reference.attention.attention import MERGED, OP
from reference.laws.attention.attention import LONG, MANY, scene
from reference.op import Arguments, Case

HEAD_DIM = 64


def inputs_over(kernel: Kernel, cells: int, tokens: int) -> Arguments:
    """Tokens of two heads that share a KV head, over this many cells."""
    return scene(OP.case({"head_dim": HEAD_DIM}, format=kernel.format), cells, tokens, kv_heads=1)


@each("attention")
@pytest.mark.parametrize("tokens", [1, FEW + 2], ids=["few", "many"])
@pytest.mark.parametrize("cells", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, LONG])
def test_chunks_merge_within_the_bound(kernel, cells, tokens):
    """At and around every chunk boundary the result is within the reference's bound."""
    inputs = inputs_over(kernel, LONG, tokens)
    inputs["spans"][:, 1:] = [[max(0, cells - t) // 3 * (t % 2), cells - t] for t in range(tokens)]
    verdict = compare(kernel, Case({}), inputs, {"out": run(kernel, **inputs)})
    assert verdict.passed, verdict.failure


@each("attention")
@pytest.mark.parametrize("tokens", [1, FEW + 1], ids=["few", "many"])
def test_many_chunks_merge_within_the_bound(kernel, tokens):
    """Beyond 32 chunks a merge by warps starts a second round, within the bound."""
    cells = 33 * cuda.CHUNK + 5
    inputs = inputs_over(kernel, cells, tokens)
    inputs["spans"][:, 1:] = [0, cells]
    together = run(kernel, **inputs)
    verdict = compare(kernel, Case({}), inputs, {"out": together})
    assert verdict.passed, verdict.failure
    one = {name: inputs[name][:1] for name in ("q", "spans", "positions")}
    assert_array_equal(run(kernel, **{**inputs, **one}), together[:1])


@each("attention", formats=("F16", "Q8_0"), target="cpu")
def test_chunks_divided_among_any_threads_give_the_same_bits(kernel):
    """Threads may have whole chunks, some items of the remaining ones, or none."""
    case = OP.case({"head_dim": HEAD_DIM}, format=kernel.format)
    inputs = scene(case, 9 * CHUNK - 3, 3, kv_heads=2)
    inputs["spans"] = np.array([[0, 0, 2100], [1, 3, 1700], [1, 3, 640]], np.int32)
    outputs = empty_outputs(OP, sizes(OP, inputs, kernel.format), kernel.format)
    found = []
    for threads in (1, 2, 3, 40):
        outputs["out"].fill(np.nan)
        bind(kernel, inputs, outputs)(threads, range(threads))
        found.append(outputs["out"].copy())
    for out in found[1:]:
        assert_array_equal(out, found[0])


@each("attention", formats=("F16", "F32"), target="cuda")
def test_persistent_blocks_have_the_bits_of_one_block_per_chunk(kernel):
    """For any number of GPU blocks that share the chunks of two sequences, in any order of
    prefetching, the bits are those of one block for each chunk."""
    for head_dim in (64, 128) if kernel.variant == "tensor" else (64, 256):
        case = OP.case({"head_dim": head_dim}, format=kernel.format)
        inputs = scene(case, 6 * cuda.CHUNK + 5, 3, kv_heads=1)
        inputs["spans"] = np.array([[0, 0, 773], [1, 3, 700], [1, 3, 640]], np.int32)
        apart = run(kernel, **inputs)
        for blocks in (1, 2, 5):
            few = [
                replace(stage, config=replace(stage.config, chosen=(("BLOCKS", blocks),)))
                for stage in kernel.stages
            ]
            assert_array_equal(run(replace(kernel, stages=tuple(few)), **inputs), apart)


def test_chunk_sizes_are_those_of_the_bound():
    """Chunks are no smaller than the reference's bound assumes, and GPU chunks end where the CPU's
    do, at the sizes of these tests; laws go beyond all of them."""
    assert min(CHUNK, cuda.CHUNK) >= MERGED
    assert CHUNK % cuda.CHUNK == 0
    assert cuda.FEW == FEW < MANY
    assert 3 * CHUNK < LONG


@each("attention")
def test_call_checks_the_format(kernel):
    """`call` takes the format from the kernel's name, and refuses another."""
    inputs = inputs_of(kernel, tokens=2, heads=4, kv_heads=2, head_dim=HEAD_DIM)
    given = {name: value for name, value in inputs.items() if name != "format"}
    assert_array_equal(call(kernel, given)["out"], run(kernel, **inputs))
    with pytest.raises(ShapeError, match="got format BF16"):
        call(kernel, {**given, "format": "BF16"})
