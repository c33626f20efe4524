"""The kernels of a decoding step, in the order and at the sizes of a model, in one graph: what an
engine's step comes to if nothing but its kernels takes time. Fused ones do the work of several, as
in the engine; what that has before and behind the blocks is a few launches more."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from bench.cuda import cases
from bench.cuda.clock import Ceilings, Clock
from bench.cuda.measure import TIMES, Bound
from bench.race.results import Measurement
from data.shapes import ModelShape
from kernels.cuda.fusion.fused import rounded
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime.device import Device
from kernels.cuda.runtime.kernel import CudaKernel
from reference.formats import FORMATS
from reference.op import Arguments, Array, Shape
from reference.quantise_activations import QUANTISING, ROUNDINGS

CONTEXT = 512  # cells that the token sees, itself included
KV_FORMAT = "F16"
SAMPLES, REPLAYS = 9, 4


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel of a step at its sizes; `make` gives its inputs, of which those called `cold` are
    each block's own."""

    kernel: CudaKernel
    shape: Shape
    make: Callable[[], Arguments]
    cold: tuple[str, ...] = ()


def seeded(kernel: CudaKernel, shape: Shape, cold: tuple[str, ...] = ()) -> Part:
    """On the kernel's own seeded arguments for one token."""
    case = kernel.spec.case({"tokens": 1, **shape}, format=kernel.format)
    return Part(kernel, case.shape, lambda: kernel.spec.make(case), cold)


def of_case(kernel: CudaKernel, case: cases.OpCase) -> Part:
    return Part(kernel, case.shape, lambda: case.inputs, tuple(case.cold))


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
    def activations(self) -> str:
        """How they are rounded, by the row of what multiplies them."""
        return self.kernel("linear", self.format).activations

    @property
    def rounds(self) -> bool:
        """Whether activations are rounded before a matrix meets them."""
        return self.activations in ROUNDINGS

    @property
    def ending(self) -> str:
        """Of the names of kernels that round what they make."""
        return {"int8": "_round", "int8_256": "_round_256"}.get(self.activations, "")

    def joined(self, x: Array, weights: Sequence[Array]) -> Arguments:
        """What linear_pair and linear_trio read of weights that meet x, in blocks rounded."""
        named = {f"weight{f'_{i}' if i else ''}": weight for i, weight in enumerate(weights)}
        return (rounded(x, self.activations) if self.rounds else {"x": x}) | named

    def block_parts(self) -> Iterator[Part]:
        """What a block does for one token."""
        m, kind = self.model, self.format
        q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim

        def linears(op: str, hidden: int, outs: Sequence[int]) -> Part:
            def make() -> Arguments:
                made = [cases.linear("", kind, 1, hidden, out).inputs for out in outs]
                return self.joined(made[0]["x"], [each["weight"] for each in made])

            named = {f"out{f'_{i}' if i else ''}": out for i, out in enumerate(outs)}
            cold = tuple(name.replace("out", "weight") for name in named)
            shape = {"tokens": 1, "hidden": hidden, **named}
            return Part(self.kernel(op, kind), shape, make, cold)

        def linear(hidden: int, out: int) -> Part:
            return of_case(self.kernel("linear", kind), cases.linear("", kind, 1, hidden, out))

        ending, width = self.ending, "hidden" if self.rounds else "width"
        norm = seeded(self.kernel(f"add_norm{ending}"), {"hidden": m.hidden}, ("weight",))
        yield norm
        yield linears("linear_trio", m.hidden, (q, kv, kv))
        turned = {
            "heads": m.heads, "kv_heads": m.kv_heads, "head_dim": m.head_dim,
            "pairs": m.head_dim // 2, "capacity": CONTEXT,
        }  # fmt: skip
        yield seeded(self.kernel(f"{m.rope}_write", KV_FORMAT), turned)
        attends = cases.attention(m, KV_FORMAT, CONTEXT)
        if ending == "_round":  # of two heads that share a scale it is another kernel's
            yield of_case(self.kernel("attention_round", KV_FORMAT), attends)
        else:
            yield of_case(self.kernel("attention", KV_FORMAT), attends)
            if self.rounds:
                yield seeded(self.kernel(QUANTISING[self.activations]), {"hidden": q})
        yield linear(q, m.hidden)
        yield norm
        gated = f"linear_{m.gate}{ending}"
        if (gated, kind) in {(k.op, k.format) for k in EVERY_CUDA if k.name not in self.out}:
            yield linears(gated, m.hidden, (m.ffn, m.ffn))
        else:
            yield linears("linear_pair", m.hidden, (m.ffn, m.ffn))
            yield seeded(self.kernel(f"{m.gate}{ending}"), {width: m.ffn})
        yield linear(m.ffn, m.hidden)

    def end_parts(self) -> Iterator[Part]:
        """What stands behind the blocks; the sum that is normalised is the last block's."""
        m = self.model
        yield seeded(self.kernel(f"add_norm{self.ending}"), {"hidden": m.hidden})
        out = cases.linear("", self.format, 1, m.hidden, m.vocab)
        yield replace(of_case(self.kernel("linear", self.format), out), cold=())
        argmax = self.kernel("argmax")
        shape = argmax.spec.case({"rows": 1, "vocab": m.vocab}).shape
        yield Part(argmax, shape, lambda: argmax.spec.make(argmax.spec.case(shape)))

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


def bound(device: Device, parts: Iterable[Part], copies: int = 1) -> tuple[list[Bound], int]:
    """Kernels over memory of their own, what is cold in so many copies; and their launches."""
    found = [Bound(device, p.kernel, p.make(), p.cold, copies) for p in parts]
    return found, sum(each.launches(rounding=False) for each in found)


def decode(step: Step, clock: Clock, ceilings: Ceilings, row: Measurement) -> Measurement:
    """The row with a token's step, and how many kernels it launches (settings, launches=N)."""
    total, n_blocks = step.bytes, step.model.blocks
    copies = 1 + int(TIMES * ceilings.cache // (total / n_blocks))
    block, launched = bound(step.device, step.block_parts(), copies)
    behind, further = bound(step.device, step.end_parts())
    for each in block + behind:
        each.enqueue(0)
    step.device.wait()
    with step.device.capture() as replay:
        for i in range(n_blocks):
            for each in block:
                each.enqueue(i)
        for each in behind:
            each.enqueue(0)
    clock.wake()
    samples = tuple(clock.seconds(lambda _: replay(), REPLAYS) for _ in range(SAMPLES))
    settings = f"context={CONTEXT},launches={n_blocks * launched + further}"
    row = replace(row, settings=settings, samples=samples, tokens=1, bytes=total, cache="cold")
    return ceilings.limit(total, 0).of(row)
