"""The kernels of a decoding step, in the order and at the sizes of a model, in one graph: what an
engine's step comes to if nothing but its kernels takes time."""

from collections.abc import Iterator
from dataclasses import dataclass

from bench.cuda import cases
from bench.cuda.bound import Bound
from bench.cuda.ceilings import Ceilings
from bench.cuda.clock import Clock
from bench.cuda.measure import TIMES
from bench.results import Measurement
from data.shapes import ModelShape
from kernels.cuda.device import Device
from kernels.cuda.gpu import Gpu
from kernels.cuda.kernel import CudaKernel
from kernels.cuda.table import CUDA_KERNELS
from reference.formats import FORMATS
from reference.op import Arguments
from reference.table import OPS

CONTEXT = 512  # cells that the token sees, itself included
KV_FORMAT = "F16"
SAMPLES, REPLAYS = 9, 4


@dataclass(frozen=True, slots=True)
class Node:
    """A kernel of the step; `rounds` its activations, or finds them as one before left them."""

    bound: Bound
    rounds: bool = False

    def enqueue(self, i: int) -> None:
        if self.rounds:
            self.bound.enqueue_rounding(i)
        else:
            self.bound.enqueue(i)


def serving(op: str, format: str | None) -> CudaKernel:
    """The first in the table."""
    return next(k for k in CUDA_KERNELS if (k.op, k.format) == (op, format))


def sized(op: str, format: str | None, **shape: int) -> Arguments:
    """The op's own seeded arguments."""
    return OPS[op].make(OPS[op].case(shape, format=format))


def block(device: Device, m: ModelShape, format: str, copies: int) -> Iterator[Node]:
    """The nodes of a block for one token, each weight in so many copies."""

    def node(op: str, kind: str | None = None, **shape: int) -> Node:
        return Node(Bound(device, serving(op, kind), sized(op, kind, **shape)))

    def linear(hidden: int, out: int, *, rounds: bool) -> Node:
        case = cases.linear("", format, 1, hidden, out)
        bound = Bound(device, serving("linear", format), case.inputs, case.cold, copies)
        return Node(bound, rounds)

    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    attends = cases.attention(m, KV_FORMAT, CONTEXT)
    attention = Bound(device, serving("attention", KV_FORMAT), attends.inputs, attends.cold, copies)
    norm = node("rms_norm", tokens=1, hidden=m.hidden)
    add = node("add", tokens=1, width=m.hidden)
    write = node("kv_write", KV_FORMAT, tokens=1, capacity=CONTEXT, width=kv)
    yield norm
    yield linear(m.hidden, q, rounds=True)
    yield linear(m.hidden, kv, rounds=False)
    yield linear(m.hidden, kv, rounds=False)
    for heads in (m.heads, m.kv_heads):
        yield node(m.rope, tokens=1, heads=heads, head_dim=m.head_dim, pairs=m.head_dim // 2)
    yield from (write, write)
    yield Node(attention)
    yield linear(q, m.hidden, rounds=True)
    yield from (add, norm)
    yield linear(m.hidden, m.ffn, rounds=True)
    yield linear(m.hidden, m.ffn, rounds=False)
    yield node(m.gate, tokens=1, width=m.ffn)
    yield linear(m.ffn, m.hidden, rounds=True)
    yield add


def ends(device: Device, m: ModelShape, format: str) -> Iterator[Node]:
    """What stands behind the blocks."""
    norm = sized("rms_norm", None, tokens=1, hidden=m.hidden)
    yield Node(Bound(device, serving("rms_norm", None), norm))
    out = cases.linear("", format, 1, m.hidden, m.vocab)
    yield Node(Bound(device, serving("linear", format), out.inputs), rounds=True)
    logits = sized("greedy", None, vocab=m.vocab)
    yield Node(Bound(device, serving("greedy", None), logits))


def bytes_of(m: ModelShape, format: str) -> float:
    """Of the weights and of the cache that a token reads."""
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    size, cache = FORMATS[format].row_bytes, FORMATS[KV_FORMAT].row_bytes(kv)
    block = (2 * q + 2 * kv) * size(m.hidden)  # the rows of wo are as many bytes as those of wq
    block += 2 * m.ffn * size(m.hidden) + m.hidden * size(m.ffn) + 2 * CONTEXT * cache
    return m.blocks * block + m.vocab * size(m.hidden)


def decode(
    gpu: Gpu, clock: Clock, ceilings: Ceilings, name: str, m: ModelShape, format: str
) -> Measurement:
    """A token's step, and how many kernels it launches (settings, launches=N)."""
    total = bytes_of(m, format)
    copies = 1 + int(TIMES * ceilings.cache // (total / m.blocks))
    blocks, behind = list(block(gpu, m, format, copies)), list(ends(gpu, m, format))
    for node in blocks + behind:
        node.enqueue(0)
    gpu.wait()
    with gpu.capture() as replay:
        for i in range(m.blocks):
            for node in blocks:
                node.enqueue(i)
        for node in behind:
            node.enqueue(0)
    launched = m.blocks * sum(map(launches_of, blocks)) + sum(map(launches_of, behind))
    samples = tuple(clock.seconds(lambda _: replay(), REPLAYS) for _ in range(SAMPLES))
    limit_seconds, limit = ceilings.seconds(total, 0)
    return Measurement(
        bench="gpu", test="kernels of a step", target="cuda", format=format, model=name,
        settings=f"context={CONTEXT},launches={launched}", samples=samples, tokens=1, bytes=total,
        limit=limit, limit_seconds=limit_seconds, cache="cold",
    )  # fmt: skip


def launches_of(node: Node) -> int:
    return node.bound.launches(rounding=node.rounds)
