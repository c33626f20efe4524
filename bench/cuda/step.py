"""The kernels of a decoding step, in the order and at the sizes of a model, in one graph: what an
engine's step comes to if nothing but its kernels takes time. Fused ones do the work of several, as
in the engine; what that has before and behind the blocks is a few launches more."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from bench.cuda import cases
from bench.cuda.bound import Bound
from bench.cuda.ceilings import Ceilings
from bench.cuda.clock import Clock
from bench.cuda.measure import TIMES
from bench.results import Measurement
from data.shapes import ModelShape
from kernels.cuda.device import Device
from kernels.cuda.fused import rounded
from kernels.cuda.fusions import EVERY_CUDA
from kernels.cuda.gpu import Gpu
from kernels.cuda.kernel import CudaKernel
from reference.formats import FORMATS
from reference.op import Arguments, Array

CONTEXT = 512  # cells that the token sees, itself included
KV_FORMAT = "F16"
SAMPLES, REPLAYS = 9, 4


def serving(op: str, format: str | None = None) -> CudaKernel:
    """What the engine takes by default."""
    exact = (k for k in EVERY_CUDA if k.numerics == "exact")
    return next(k for k in exact if (k.op, k.format) == (op, format))


def sized(kernel: CudaKernel, **shape: int) -> Arguments:
    """The kernel's own seeded arguments for one token."""
    return kernel.spec.make(kernel.spec.case({"tokens": 1, **shape}, format=kernel.format))


def joined(format: str, x: Array, weights: Sequence[Array]) -> Arguments:
    """What linear_pair and linear_trio read of weights that meet x, in blocks rounded."""
    named = {f"weight{f'_{i}' if i else ''}": weight for i, weight in enumerate(weights)}
    if serving("linear", format).activations == "float32":
        return {"x": x, **named}
    return rounded(x) | named


def block(device: Device, m: ModelShape, format: str, copies: int) -> Iterator[Bound]:
    """What a block does for one token, each weight in so many copies."""
    rounds = serving("linear", format).activations == "int8"
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim

    def small(op: str, kind: str | None = None, cold: Sequence[str] = (), **shape: int) -> Bound:
        kernel = serving(op, kind)
        return Bound(device, kernel, sized(kernel, **shape), cold, copies)

    def linears(op: str, hidden: int, outs: Sequence[int]) -> Bound:
        made = [cases.linear("", format, 1, hidden, out).inputs for out in outs]
        inputs = joined(format, made[0]["x"], [each["weight"] for each in made])
        cold = [name for name in inputs if name.startswith("weight")]
        return Bound(device, serving(op, format), inputs, cold, copies)

    def linear(hidden: int, out: int) -> Bound:
        case = cases.linear("", format, 1, hidden, out)
        return Bound(device, serving("linear", format), case.inputs, case.cold, copies)

    ending, width = ("_round", "hidden") if rounds else ("", "width")
    norm = partial(small, f"add_norm{ending}", cold=["weight"], hidden=m.hidden)
    attends = cases.attention(m, KV_FORMAT, CONTEXT)
    attention = serving(f"attention{ending}", KV_FORMAT)
    yield norm()
    yield linears("linear_trio", m.hidden, (q, kv, kv))
    yield small(
        f"{m.rope}_write", KV_FORMAT, heads=m.heads, kv_heads=m.kv_heads, head_dim=m.head_dim,
        pairs=m.head_dim // 2, capacity=CONTEXT,
    )  # fmt: skip
    yield Bound(device, attention, attends.inputs, attends.cold, copies)
    yield linear(q, m.hidden)
    yield norm()
    yield linears("linear_pair", m.hidden, (m.ffn, m.ffn))
    yield small(f"{m.gate}{ending}", None, (), **{width: m.ffn})
    yield linear(m.ffn, m.hidden)


def ends(device: Device, m: ModelShape, format: str) -> Iterator[Bound]:
    """What stands behind the blocks; the sum that is normalised is the last block's."""
    rounds = serving("linear", format).activations == "int8"
    norm, greedy = serving("add_norm_round" if rounds else "add_norm"), serving("greedy")
    yield Bound(device, norm, sized(norm, hidden=m.hidden))
    out = cases.linear("", format, 1, m.hidden, m.vocab)
    yield Bound(device, serving("linear", format), out.inputs)
    yield Bound(device, greedy, greedy.spec.make(greedy.spec.case({"vocab": m.vocab})))


def launches(bounds: Iterable[Bound]) -> int:
    """How many they take."""
    return sum(bound.launches(rounding=False) for bound in bounds)


def bytes_of(m: ModelShape, format: str) -> float:
    """Of the weights and of the cache that a token reads."""
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    size, cache = FORMATS[format].row_bytes, FORMATS[KV_FORMAT].row_bytes(kv)
    block = (2 * q + 2 * kv) * size(m.hidden)  # the rows of wo are as many bytes as those of wq
    block += 2 * m.ffn * size(m.hidden) + m.hidden * size(m.ffn) + 2 * CONTEXT * cache
    norm = FORMATS["F32"].row_bytes(m.hidden)
    return m.blocks * (block + 2 * norm) + m.vocab * size(m.hidden) + norm


def decode(
    gpu: Gpu, clock: Clock, ceilings: Ceilings, name: str, m: ModelShape, format: str
) -> Measurement:
    """A token's step, and how many kernels it launches (settings, launches=N)."""
    total = bytes_of(m, format)
    copies = 1 + int(TIMES * ceilings.cache // (total / m.blocks))
    blocks, behind = list(block(gpu, m, format, copies)), list(ends(gpu, m, format))
    for bound in blocks + behind:
        bound.enqueue(0)
    gpu.wait()
    with gpu.capture() as replay:
        for i in range(m.blocks):
            for bound in blocks:
                bound.enqueue(i)
        for bound in behind:
            bound.enqueue(0)
    launched = m.blocks * launches(blocks) + launches(behind)
    samples = tuple(clock.seconds(lambda _: replay(), REPLAYS) for _ in range(SAMPLES))
    limit_seconds, limit = ceilings.seconds(total, 0)
    return Measurement(
        bench="gpu", test="kernels of a step", target="cuda", format=format, model=name,
        settings=f"context={CONTEXT},launches={launched}", samples=samples, tokens=1, bytes=total,
        limit=limit, limit_seconds=limit_seconds, cache="cold",
    )  # fmt: skip
