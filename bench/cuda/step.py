"""The kernels of a decoding step, in the order and at the sizes of a model, in one graph: what an
engine's step comes to if nothing but its kernels takes time. Fused ones do the work of several, as
in the engine; what that has before and behind the blocks is a few launches more."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.cuda import cases
from bench.cuda.bound import Bound
from bench.cuda.ceilings import Ceilings
from bench.cuda.clock import Clock
from bench.cuda.measure import TIMES
from bench.race.results import Measurement
from data.shapes import ModelShape
from kernels.cuda.fusion.fused import rounded
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime.device import Device
from kernels.cuda.runtime.kernel import CudaKernel
from reference.formats import FORMATS
from reference.op import Arguments, Array

CONTEXT = 512  # cells that the token sees, itself included
KV_FORMAT = "F16"
SAMPLES, REPLAYS = 9, 4


def sized(kernel: CudaKernel, **shape: int) -> Arguments:
    """The kernel's own seeded arguments for one token."""
    return kernel.spec.make(kernel.spec.case({"tokens": 1, **shape}, format=kernel.format))


@dataclass(frozen=True, slots=True)
class Step:
    """Of a model with weights in a format, without the kernels that are called so."""

    device: Device
    model: ModelShape
    format: str
    out: frozenset[str] = frozenset()

    def kernel(self, op: str, format: str | None = None) -> CudaKernel:
        """What the engine takes by default."""
        exact = [k for k in EVERY_CUDA if k.numerics == "exact" and k.name not in self.out]
        for kernel in exact:
            if (kernel.op, kernel.format) == (op, format):
                return kernel
        raise LookupError(" ".join(filter(None, ("no kernel for", op, format, "passed"))))

    @property
    def rounds(self) -> bool:
        """Whether activations are rounded before a matrix meets them."""
        return self.kernel("linear", self.format).activations == "int8"

    def joined(self, x: Array, weights: Sequence[Array]) -> Arguments:
        """What linear_pair and linear_trio read of weights that meet x, in blocks rounded."""
        named = {f"weight{f'_{i}' if i else ''}": weight for i, weight in enumerate(weights)}
        return (rounded(x) if self.rounds else {"x": x}) | named

    def block(self, copies: int) -> Iterator[Bound]:
        """What a block does for one token, each weight in so many copies."""
        m, kind = self.model, self.format
        q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim

        def bound(kernel: CudaKernel, inputs: Arguments, cold: Sequence[str] = ()) -> Bound:
            return Bound(self.device, kernel, inputs, cold, copies)

        def small(op: str, format: str | None, cold: Sequence[str] = (), **shape: int) -> Bound:
            kernel = self.kernel(op, format)
            return bound(kernel, sized(kernel, **shape), cold)

        def linears(op: str, hidden: int, outs: Sequence[int]) -> Bound:
            made = [cases.linear("", kind, 1, hidden, out).inputs for out in outs]
            inputs = self.joined(made[0]["x"], [each["weight"] for each in made])
            cold = [name for name in inputs if name.startswith("weight")]
            return bound(self.kernel(op, kind), inputs, cold)

        def linear(hidden: int, out: int) -> Bound:
            case = cases.linear("", kind, 1, hidden, out)
            return bound(self.kernel("linear", kind), case.inputs, case.cold)

        ending, width = ("_round", "hidden") if self.rounds else ("", "width")
        norm = partial(small, f"add_norm{ending}", None, ["weight"], hidden=m.hidden)
        attends = cases.attention(m, KV_FORMAT, CONTEXT)
        yield norm()
        yield linears("linear_trio", m.hidden, (q, kv, kv))
        yield small(
            f"{m.rope}_write", KV_FORMAT, heads=m.heads, kv_heads=m.kv_heads, head_dim=m.head_dim,
            pairs=m.head_dim // 2, capacity=CONTEXT,
        )  # fmt: skip
        yield bound(self.kernel(f"attention{ending}", KV_FORMAT), attends.inputs, attends.cold)
        yield linear(q, m.hidden)
        yield norm()
        yield linears("linear_pair", m.hidden, (m.ffn, m.ffn))
        yield small(f"{m.gate}{ending}", None, (), **{width: m.ffn})
        yield linear(m.ffn, m.hidden)

    def ends(self) -> Iterator[Bound]:
        """What stands behind the blocks; the sum that is normalised is the last block's."""
        m, device = self.model, self.device
        norm = self.kernel("add_norm_round" if self.rounds else "add_norm")
        greedy = self.kernel("greedy")
        yield Bound(device, norm, sized(norm, hidden=m.hidden))
        out = cases.linear("", self.format, 1, m.hidden, m.vocab)
        yield Bound(device, self.kernel("linear", self.format), out.inputs)
        yield Bound(device, greedy, greedy.spec.make(greedy.spec.case({"vocab": m.vocab})))

    @property
    def bytes(self) -> float:
        """Of the weights and of the cache that a token reads."""
        m = self.model
        q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
        size, cache = FORMATS[self.format].row_bytes, FORMATS[KV_FORMAT].row_bytes(kv)
        block = (2 * q + 2 * kv) * size(m.hidden)  # the rows of wo are as many bytes as those of wq
        block += 2 * m.ffn * size(m.hidden) + m.hidden * size(m.ffn) + 2 * CONTEXT * cache
        norm = FORMATS["F32"].row_bytes(m.hidden)
        return m.blocks * (block + 2 * norm) + m.vocab * size(m.hidden) + norm


def launches(bounds: Iterable[Bound]) -> int:
    """How many they take."""
    return sum(bound.launches(rounding=False) for bound in bounds)


def decode(step: Step, clock: Clock, ceilings: Ceilings, row: Measurement) -> Measurement:
    """The row with a token's step, and how many kernels it launches (settings, launches=N)."""
    total, n_blocks = step.bytes, step.model.blocks
    copies = 1 + int(TIMES * ceilings.cache // (total / n_blocks))
    blocks, behind = list(step.block(copies)), list(step.ends())
    for bound in blocks + behind:
        bound.enqueue(0)
    step.device.wait()
    with step.device.capture() as replay:
        for i in range(n_blocks):
            for bound in blocks:
                bound.enqueue(i)
        for bound in behind:
            bound.enqueue(0)
    launched = n_blocks * launches(blocks) + launches(behind)
    clock.wake()
    samples = tuple(clock.seconds(lambda _: replay(), REPLAYS) for _ in range(SAMPLES))
    settings = f"context={CONTEXT},launches={launched}"
    row = replace(row, settings=settings, samples=samples, tokens=1, bytes=total, cache="cold")
    return ceilings.limit(total, 0).of(row)
