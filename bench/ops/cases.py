"""Which sizes a model's steps need of which op: every benchmark's case, from the shapes in data/.

Sizes shared by several models are measured once, under all their names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from data.shapes import ModelShape, ShapeError, Shapes, Sweep
from kernels.kernel import Kernel
from kernels.table import KERNELS
from reference.formats import FORMATS
from reference.formats.minicache import page_bytes
from reference.table import OPS

TOKENS = (1, 8, 512)
CACHES = ("cold", "hot")
CONTEXT = 512  # cells that attention sees, its own included
PAGE = 16  # cells
RESIDUAL = 128  # of these cells, besides pages of two bits, or merged pages
PACKED = 32  # tokens of a two-bit page
MERGED = 256  # tokens of a merged page
GROUP = 128  # elements that share a scale, where not a whole row does
LATENT = 192, 128, 512, 576  # of DeepSeek-V2's heads: all, split, latent, latent and rotated
EXPERTS, USED = 8, 2  # experts of a mixture, and experts per token
LOGITS = 8  # tokens of a step with logits, at most

Sizes = Mapping[str, int]
Asked = Callable[[ModelShape, int], Iterable[Sizes]]  # of a step of so many tokens


@dataclass(frozen=True, slots=True)
class BenchCase:
    """A kernel at sizes needed by these models (or by a sweep)."""

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
    """The sizes at which a step of so many tokens runs the op; nothing where it does not. Axes have
    their usual sizes, unless the op's row of OWN overrides them."""
    axes = OPS[op].axes
    if tokens > (1 if op in FEW else LOGITS if "nodes" in axes else tokens):
        return
    for own in OWN[op](model, tokens) if op in OWN else ({},):
        known = {**usual(model, tokens), **own}
        if op in OWN or axes.keys() <= known.keys():
            yield {axis: known[axis] for axis in axes}


def usual(m: ModelShape, tokens: int) -> dict[str, int]:
    """The usual size of each axis: for a text that fills the cache."""
    of_heads = {"heads": m.heads, "kv_heads": m.kv_heads, "choosers": m.kv_heads}
    of_heads |= {"head_dim": m.head_dim, "pairs": m.head_dim // 2}
    of_cache = {"capacity": CONTEXT, "held": CONTEXT, "places": CONTEXT, "kept": CONTEXT // 4}
    of_cache |= {"sequences": 1, "pages": CONTEXT // PAGE, "page": PAGE, "parts": CONTEXT // 64}
    plain = dict.fromkeys(("windowed", "alibi", "softcapped"), 0)
    of_steps = dict.fromkeys(("tokens", "rows", "groups", "nodes"), tokens)
    of_network = {"hidden": m.hidden} | dict.fromkeys(("width", "size", "neurons"), m.ffn)
    of_network |= {"experts": EXPERTS, "used": USED, "bits": 8, "slots": 2, "vocab": m.vocab}
    return of_heads | of_cache | plain | of_steps | of_network


def _linear(m: ModelShape, tokens: int) -> Iterator[Sizes]:
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    products = (m.hidden, q), (m.hidden, kv), (q, m.hidden), (m.hidden, m.ffn), (m.ffn, m.hidden)
    logits = [(m.hidden, m.vocab)] if tokens <= LOGITS else []
    yield from ({"hidden": hidden, "out": out} for hidden, out in (*products, *logits))


def _linear_w8a8(m: ModelShape, _: int) -> Iterator[Sizes]:
    for hidden, out in (m.hidden, m.ffn), (m.ffn, m.hidden):
        yield {"groups": 1, "size": hidden, "out": out}
        if hidden % GROUP == 0:
            yield {"groups": hidden // GROUP, "size": GROUP, "out": out}


def _linear_float8(m: ModelShape, _: int) -> Iterator[Sizes]:
    yield {"hidden": m.hidden, "out": m.ffn}
    yield {"hidden": m.ffn, "out": m.hidden}


def _experts(m: ModelShape, _: int) -> Iterator[Sizes]:
    """As if the network were EXPERTS of equal width, whole blocks of every format."""
    width = max(1, m.ffn // EXPERTS // 256) * 256
    for hidden, out in (m.hidden, width), (width, m.hidden):
        yield {"hidden": hidden, "out": out, "held": EXPERTS}


def _rope(op: str) -> Asked:
    return lambda m, _: [{"heads": n} for n in ((m.heads, m.kv_heads) if op == m.rope else ())]


def _gated(op: str) -> Asked:
    return lambda m, _: [{}] if op == m.gate else []


def _some_neurons(m: ModelShape, _: int) -> Iterator[Sizes]:
    yield from ({"active": active, "held": m.ffn} for active in (m.ffn // 10, m.ffn))


def _both_inputs(m: ModelShape, _: int) -> Iterator[Sizes]:
    """Two inputs of a block's matrices: the usual one, and down's."""
    yield from ({"hidden": hidden} for hidden in (m.hidden, m.ffn))


def _kivi(m: ModelShape, _: int) -> Iterator[Sizes]:
    """A text with all but the latest tokens in two bits."""
    pages = (CONTEXT - RESIDUAL) // PACKED
    if m.head_dim % 32 == 0:
        yield {"capacity": RESIDUAL, "pages": pages, "slots": pages}


def _merged(capacity: int, whole: int = 1) -> Asked:
    """A text with all but the latest tokens merged between blocks, for models with heads of so many
    elements or multiples."""
    pages = {"capacity": capacity, "pages": CONTEXT // MERGED, "slots": CONTEXT // MERGED}
    return lambda m, _: (
        [pages | {"page": page_bytes(m.head_dim, 13)}] if m.head_dim % whole == 0 else []
    )


def _choice(m: ModelShape, tokens: int) -> Iterator[Sizes]:
    """An eighth of the pages, for each KV head: the lists of eight tokens fill a row."""
    chosen = CONTEXT // PAGE // 8
    yield {"rows": -(-tokens // 8), "wide": CONTEXT * m.kv_heads, "chosen": chosen}


FEW = {  # of steps with one token only
    "slerp_weights", "merge_blocks", "knorm", "keydiff", "pool_scores", "keep_top", "kv_keep",
    "page_extremes", "logit_bias", "dry", "argmax",
    *(name for name, op in OPS.items() if tuple(op.axes) == ("vocab",)),
}  # fmt: skip
OF_WIDTH = ("add", "add_bias", "mul", "mul_columns", "softplus", "sigmoid", "scale")
OF_BLOCKS = ("block_scores", "prompt_pattern", "pattern_attention")  # of queries of a prompt
OWN: Mapping[str, Asked] = {
    "linear": _linear,
    "linear_w8a8": _linear_w8a8,
    "linear_e4m3": _linear_float8,
    "linear_e5m2": _linear_float8,
    "quantise_activations": _both_inputs,
    "quantise_activations_256": _both_inputs,
    "add_squares": _both_inputs,
    **{name: _rope(name) for name in ("rope_norm", "rope_neox")},
    **{name: _gated(name) for name in ("swiglu", "reglu")},
    "kv_write": lambda m, _: [{"width": m.kv_heads * m.head_dim}],
    **dict.fromkeys(OF_BLOCKS, lambda m, _: [{"rows": 2}]),
    **dict.fromkeys(("attention_kivi", "kivi_keys", "kivi_values"), _kivi),
    "attention_minicache": _merged(RESIDUAL, whole=16),
    **dict.fromkeys(("slerp_weights", "merge_blocks"), _merged(CONTEXT)),
    "choose_pages": _choice,
    "softmax": lambda *_: [{"width": CONTEXT}],
    **dict.fromkeys(OF_WIDTH, lambda m, _: [{"width": m.hidden}]),
    "softcap": lambda m, _: [{"width": m.vocab}],
    **dict.fromkeys(("quantise", "dequantise", "quantise_weighted"),
                    lambda m, _: [{"hidden": m.ffn}]),
    # as in a block of Mamba, or of a gated delta net, of the model's width
    "causal_conv1d": lambda m, _: [{"width": 2 * m.hidden, "taps": 4, "kept": 3}],
    "ssm_scan": lambda m, _: [{"inner": 2 * m.hidden, "state": 16}],
    "ssm_scan_heads": lambda m, _: [
        {"heads": m.hidden // 32, "head_dim": 64, "groups": 1, "state": 128}
    ],
    "gated_delta_net": lambda m, _: [
        {"groups": 16, "heads": m.hidden // 64, "head_dim": 128, "state": 128}
    ],
    **dict.fromkeys(("sparse_linear", "sparse_axpy"), _some_neurons),
    "linear_experts": _experts,
    "split_heads": lambda *_: [{"width": LATENT[0], "size": LATENT[1]}],
    "merge_heads": lambda *_: [{"width": LATENT[0], "size": LATENT[2], "whole": LATENT[3]}],
    "logit_bias": lambda *_: [{"biases": 8}],
    "dry": lambda *_: [{"context": CONTEXT, "breakers": 2}],
}  # fmt: skip


def cases(
    shapes: Shapes,
    models: Sequence[str] | None = None,
    tokens: Sequence[int] = TOKENS,
    kernels: Sequence[Kernel] = KERNELS,
) -> list[BenchCase]:
    """Every kernel at every size that a model needs of its op, and the sweeps; each size once."""
    chosen = list(shapes.models) if models is None else list(models)
    if unknown := [name for name in chosen if name not in shapes.models]:
        raise ShapeError(f"no model is called {unknown[0]!r}: {', '.join(shapes.models)}")
    ops = dict.fromkeys([*OPS, *(kernel.op for kernel in kernels)])  # a package may bring its own
    named: dict[str, dict[tuple[tuple[str, int], ...], list[str]]] = {op: {} for op in ops}
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
    """Sort key: cases of one weight are adjacent, few tokens first, since they predict the time of
    more."""
    return [size for axis, size in sizes if axis != "tokens"], dict(sizes).get("tokens", 0)


def _check(sweep: Sweep) -> None:
    """Check that there is such an op with exactly these axes."""
    where, op = sweep.where, sweep.op
    if op not in OPS:
        raise ShapeError(f"{where}: there is no op {op!r}: {', '.join(OPS)}")
    axes = list(OPS[op].axes)
    for shape in sweep.shapes:
        if strange := [axis for axis in shape if axis not in axes]:
            raise ShapeError(f"{where}: {op} has no axis {strange[0]!r}: {', '.join(axes)}")
        if missing := [axis for axis in axes if axis not in shape]:
            raise ShapeError(f"{where}: {op} lacks the axis {missing[0]!r}")
