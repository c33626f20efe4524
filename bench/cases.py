"""Which sizes a model asks of which op: every benchmark's case, from the shapes in data/.

Sizes that several models share are measured once, under all their names.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from data.shapes import ModelShape, ShapeError, Shapes, Sweep
from kernels.kernel import Kernel
from kernels.table import KERNELS
from reference.formats import FORMATS
from reference.table import OPS

TOKENS = (1, 8, 512)
CACHES = ("cold", "hot")
CONTEXT = 512  # cells that attention sees, itself included
GROUP = 128  # elements that share a scale, where not a row does
LOGITS = 8  # tokens of a step that may want logits, at most

ACTIVATIONS = (
    "silu", "gelu", "gelu_erf", "relu", "squared_relu", "geglu", "squared_reglu", "drelu",
)  # fmt: skip

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class BenchCase:
    """A kernel at sizes that these models (or a sweep) ask of it."""

    kernel: Kernel
    shape: Sizes
    models: tuple[str, ...]

    @property
    def sizes(self) -> str:
        """tokens=1,hidden=2048,out=5632: as `assay op --shape` takes it."""
        return ",".join(f"{axis}={size}" for axis, size in self.shape.items())

    def __str__(self) -> str:
        return f"{self.kernel.name} {self.sizes}"


def asked(op: str, model: ModelShape, tokens: int) -> Iterator[Sizes]:
    """The sizes at which a step of so many tokens runs the op; nothing where it does not."""
    m, n = model, {"tokens": tokens}
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    heads = ((m.heads, m.head_dim), (m.kv_heads, m.head_dim))
    match op:
        case "linear":
            for hidden, out in (
                (m.hidden, q), (m.hidden, kv), (q, m.hidden), (m.hidden, m.ffn), (m.ffn, m.hidden),
            ):  # fmt: skip
                yield n | {"hidden": hidden, "out": out}
            if tokens <= LOGITS:
                yield n | {"hidden": m.hidden, "out": m.vocab}
        case "embedding":
            yield n | {"vocab": m.vocab, "hidden": m.hidden}
        case "rms_norm" | "layer_norm":
            yield n | {"hidden": m.hidden}
        case "quantise_activations":
            yield from (n | {"hidden": hidden} for hidden in (m.hidden, m.ffn))
        case "rotation":
            yield n | {"pairs": m.head_dim // 2}
        case "rope_norm" | "rope_neox" if op == m.rope:
            for count, head_dim in heads:
                yield n | {"heads": count, "head_dim": head_dim, "pairs": head_dim // 2}
        case "kv_write":
            yield n | {"capacity": CONTEXT, "width": kv}
        case "attention":
            plain = {"sequences": 1, "windowed": 0, "alibi": 0, "softcapped": 0}
            sizes = {"heads": m.heads, "kv_heads": m.kv_heads, "head_dim": m.head_dim}
            yield n | sizes | {"capacity": CONTEXT} | plain
        case "softmax":
            yield n | {"width": CONTEXT}
        case "add" | "add_bias" | "scale":
            yield n | {"width": m.hidden}
        case "sparse_linear" | "sparse_axpy":
            for active in m.ffn // 10, m.ffn:
                sizes = {"hidden": m.hidden, "neurons": m.ffn, "active": active}
                yield n | sizes | {"held": m.ffn}
        case _ if list(OPS[op].axes) == ["tokens", "neurons"]:  # masks
            yield n | {"neurons": m.ffn}
        case _ if op in ACTIVATIONS:
            yield n | {"width": m.ffn}
        case "swiglu" | "reglu" if op == m.gate:
            yield n | {"width": m.ffn}
        case "add_squares":
            yield from (n | {"hidden": hidden} for hidden in (m.hidden, m.ffn))
        case "quantise" | "quantise_weighted" | "dequantise":
            yield {"rows": tokens, "hidden": m.ffn}
        case "linear_w8a8":
            for hidden, out in (m.hidden, m.ffn), (m.ffn, m.hidden):
                yield n | {"groups": 1, "size": hidden, "out": out}
                if hidden % GROUP == 0:
                    yield n | {"groups": hidden // GROUP, "size": GROUP, "out": out}
        case "linear_e4m3" | "linear_e5m2":
            for hidden, out in (m.hidden, m.ffn), (m.ffn, m.hidden):
                yield n | {"hidden": hidden, "out": out}
        case _ if list(OPS[op].axes)[:2] == ["groups", "size"]:  # by token
            bits = {"bits": 8} if "bits" in OPS[op].axes else {}
            yield {"groups": tokens, "size": m.ffn} | bits
        case _ if tokens <= LOGITS and list(OPS[op].axes) == ["nodes", "vocab"]:  # of a draft
            yield {"nodes": tokens, "vocab": m.vocab}
        case "logit_bias" if tokens == 1:
            yield {"vocab": m.vocab, "biases": 8}
        case "dry" if tokens == 1:
            yield {"vocab": m.vocab, "context": CONTEXT, "breakers": 2}
        case _ if tokens == 1 and list(OPS[op].axes) == ["vocab"]:  # the other samplers
            yield {"vocab": m.vocab}


def cases(
    shapes: Shapes,
    models: Sequence[str] | None = None,
    tokens: Sequence[int] = TOKENS,
    kernels: Sequence[Kernel] = KERNELS,
) -> list[BenchCase]:
    """Every kernel at every size that a model asks of its op, and the sweeps; each size once."""
    chosen = list(shapes.models) if models is None else list(models)
    if unknown := [name for name in chosen if name not in shapes.models]:
        raise ShapeError(f"no model is called {unknown[0]!r}: {', '.join(shapes.models)}")
    named: dict[str, dict[tuple[tuple[str, int], ...], list[str]]] = {op: {} for op in OPS}
    for op, sizes in named.items():
        for name in chosen:
            for count in tokens:
                for shape in asked(op, shapes.models[name], count):
                    names = sizes.setdefault(tuple(shape.items()), [])
                    if name not in names:
                        names.append(name)
    for sweep in shapes.sweeps:
        _check(sweep)
        for shape in sweep.shapes:
            named[sweep.op].setdefault(tuple(shape.items()), []).append("sweep")
    return [
        BenchCase(kernel, dict(sizes), tuple(named[kernel.op][sizes]))
        for kernel in kernels
        for sizes in sorted(named[kernel.op], key=_tokens_last)
        if kernel.takes(dict(sizes)) and _fits(kernel, dict(sizes))
    ]


def _fits(kernel: Kernel, shape: dict[str, int]) -> bool:
    """Whether rows of these sizes are whole blocks of the kernel's format."""
    block, axes = FORMATS[kernel.format or "F32"].block, OPS[kernel.op].axes
    return "hidden" not in axes or shape["hidden"] % block == 0


def _tokens_last(sizes: tuple[tuple[str, int], ...]) -> tuple[list[int], int]:
    """Cases of one weight stand together, few tokens first: they foretell what more will take."""
    return [size for axis, size in sizes if axis != "tokens"], dict(sizes).get("tokens", 0)


def _check(sweep: Sweep) -> None:
    """Whether there is such an op and it has just these axes."""
    where, op = sweep.where, sweep.op
    if op not in OPS:
        raise ShapeError(f"{where}: there is no op {op!r}: {', '.join(OPS)}")
    axes = list(OPS[op].axes)
    for shape in sweep.shapes:
        if strange := [axis for axis in shape if axis not in axes]:
            raise ShapeError(f"{where}: {op} has no axis {strange[0]!r}: {', '.join(axes)}")
        if missing := [axis for axis in axes if axis not in shape]:
            raise ShapeError(f"{where}: {op} lacks the axis {missing[0]!r}")
