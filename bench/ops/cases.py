"""Which sizes a model asks of which op: every benchmark's case, from the shapes in data/.

Sizes that several models share are measured once, under all their names.
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
CONTEXT = 512  # cells that attention sees, itself included
PAGE = 16  # cells
RESIDUAL = 128  # of these cells, beside pages of two bits
MERGED = 256  # tokens of a page that two blocks share
GROUP = 128  # elements that share a scale, where not a row does
LATENT = 192, 128, 512, 576  # of DeepSeek-V2's heads: all, apart, latent, latent and turned
EXPERTS, USED = 8, 2  # of a mixture, and for each token
LOGITS = 8  # tokens of a step that may want logits, at most

Sizes = Mapping[str, int]
Asked = Callable[[ModelShape, int], Iterable[Sizes]]  # of a step of so many tokens


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
    found = BY_NAME.get(op) or BY_AXES.get(tuple(OPS[op].axes))
    for sizes in found(model, tokens) if found else ():
        yield {"tokens": tokens, **sizes} if "tokens" in OPS[op].axes else sizes


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


def _rope(op: str) -> Asked:
    def sizes(m: ModelShape, _: int) -> Iterator[Sizes]:
        for heads in (m.heads, m.kv_heads) if op == m.rope else ():
            yield {"heads": heads, "head_dim": m.head_dim, "pairs": m.head_dim // 2}

    return sizes


def _attention(m: ModelShape, _: int) -> Iterator[Sizes]:
    plain = {"sequences": 1, "windowed": 0, "alibi": 0, "softcapped": 0}
    heads = {"heads": m.heads, "kv_heads": m.kv_heads, "head_dim": m.head_dim}
    yield heads | {"capacity": CONTEXT} | plain


def _received(m: ModelShape, _: int) -> Iterator[Sizes]:
    """Of tokens of a prompt that observe."""
    heads = {"heads": m.heads, "kv_heads": m.kv_heads, "head_dim": m.head_dim}
    yield heads | {"capacity": CONTEXT, "sequences": 1, "softcapped": 0}


def _prompt(m: ModelShape, *more: str) -> Sizes:
    """Of a block of queries of a prompt that is read by its patterns."""
    sizes = {"heads": m.heads, "kv_heads": m.kv_heads, "head_dim": m.head_dim, "rows": 2}
    sizes |= {"capacity": CONTEXT, "sequences": 1, "softcapped": 0, "parts": CONTEXT // 64}
    return {name: sizes[name] for name in ("heads", "capacity", *more)}


OF_HEADS = "kv_heads", "head_dim", "sequences"


def _packed(m: ModelShape) -> Sizes:
    """Of a text of which all but the latest tokens are in two bits."""
    slots = (CONTEXT - RESIDUAL) // 32
    sizes = {"capacity": RESIDUAL, "sequences": 1, "pages": slots}
    return {**sizes, "kv_heads": m.kv_heads, "head_dim": m.head_dim}


def _kivi(m: ModelShape, _: int) -> Iterator[Sizes]:
    plain = {"alibi": 0, "softcapped": 0}
    pages = _packed(m)
    if m.head_dim % 32 == 0:
        yield {**pages, "heads": m.heads, "slots": pages["pages"], **plain}


def _merged(m: ModelShape, *more: str) -> Sizes:
    """Of a text that fills the cache, of which blocks share all but the latest tokens."""
    slots = CONTEXT // MERGED
    sizes = {"capacity": CONTEXT, "slots": slots, "places": CONTEXT, "pages": slots}
    sizes |= {"heads": m.heads, "alibi": 0, "softcapped": 0, "page": page_bytes(m.head_dim, 13)}
    own = {"sequences": 1, "kv_heads": m.kv_heads, "head_dim": m.head_dim}
    return own | {name: sizes[name] for name in ("capacity", *more)}


def _minicache(m: ModelShape, _: int) -> Iterator[Sizes]:
    pages = _merged(m, "heads", "slots", "pages", "page", "alibi", "softcapped")
    if m.head_dim % 16 == 0:
        yield {**pages, "capacity": RESIDUAL}


def _cells(m: ModelShape) -> Sizes:
    """Of a text that fills the cache."""
    held = {"capacity": CONTEXT, "held": CONTEXT}
    return {**held, "kv_heads": m.kv_heads, "head_dim": m.head_dim}


def _pages(m: ModelShape) -> Sizes:
    """Of a text that fills the cache."""
    of_cache = {"sequences": 1, "pages": CONTEXT // PAGE, "page": PAGE}
    return {**of_cache, "head_dim": m.head_dim, "kv_heads": m.kv_heads}


def _choice(m: ModelShape, tokens: int) -> Iterator[Sizes]:
    """An eighth of the pages, for each head of keys: the lists of eight tokens fill a row."""
    of_cache = {"sequences": 1, "pages": CONTEXT // PAGE, "page": PAGE, "capacity": CONTEXT}
    lists = {"rows": -(-tokens // 8), "wide": CONTEXT * m.kv_heads, "chosen": CONTEXT // PAGE // 8}
    yield {**of_cache, **lists, "choosers": m.kv_heads, "kv_heads": m.kv_heads}


def _some_neurons(m: ModelShape, _: int) -> Iterator[Sizes]:
    for active in m.ffn // 10, m.ffn:
        yield {"hidden": m.hidden, "neurons": m.ffn, "active": active, "held": m.ffn}


def _recurrent(sizes: Sizes) -> Sizes:
    """As a block of Mamba's of the model's width has them, a state to read and one to write."""
    return {**sizes, "slots": 2}


def _experts(m: ModelShape, _: int) -> Iterator[Sizes]:
    """As if the network were EXPERTS of their part of its width, whole blocks of every format."""
    width = max(1, m.ffn // EXPERTS // 256) * 256
    for hidden, out in (m.hidden, width), (width, m.hidden):
        yield {"experts": EXPERTS, "hidden": hidden, "out": out, "held": EXPERTS}


def _gated(op: str) -> Asked:
    return lambda m, _: [{"width": m.ffn}] if op == m.gate else []


def _both_inputs(m: ModelShape, _: int) -> Iterator[Sizes]:
    """Of the matrices of a block: what most of them meet, and what down meets."""
    yield from ({"hidden": hidden} for hidden in (m.hidden, m.ffn))


def _for_few(sizes: Callable[[ModelShape, int], Sizes], most: int = 1) -> Asked:
    """In steps of so few tokens alone: for each, or for each that wants logits."""
    return lambda m, tokens: [sizes(m, tokens)] if tokens <= most else []


OF_WIDTH = ("add", "add_bias", "mul", "mul_columns", "softplus", "sigmoid", "scale")
BY_NAME: Mapping[str, Asked] = {
    "linear": _linear,
    "linear_w8a8": _linear_w8a8,
    "linear_e4m3": _linear_float8,
    "linear_e5m2": _linear_float8,
    "embedding": lambda m, _: [{"vocab": m.vocab, "hidden": m.hidden}],
    "quantise_activations": _both_inputs,
    "quantise_activations_256": _both_inputs,
    "add_squares": _both_inputs,
    "add_squares_by_expert": lambda m, _: [{"experts": EXPERTS, "hidden": m.hidden}],
    "rotation": lambda m, _: [{"pairs": m.head_dim // 2}],
    "rope_norm": _rope("rope_norm"),
    "rope_neox": _rope("rope_neox"),
    "kv_write": lambda m, _: [{"capacity": CONTEXT, "width": m.kv_heads * m.head_dim}],
    "attention": _attention,
    "attention_received": _received,
    "stripe_sums": lambda m, _: [_prompt(m, *OF_HEADS, "softcapped")],
    "block_scores": lambda m, _: [_prompt(m, *OF_HEADS, "rows", "parts")],
    "prompt_pattern": lambda m, _: [_prompt(m, "rows", "parts")],
    "pattern_attention": lambda m, _: [_prompt(m, *OF_HEADS, "softcapped", "rows")],
    "attention_kivi": _kivi,
    "kivi_keys": lambda m, _: [_packed(m)] if m.head_dim % 32 == 0 else [],
    "kivi_values": lambda m, _: [_packed(m)] if m.head_dim % 32 == 0 else [],
    "attention_minicache": _minicache,
    "slerp_weights": _for_few(lambda m, _: _merged(m, "places")),
    "merge_blocks": _for_few(lambda m, _: _merged(m, "places", "slots", "pages", "page")),
    "knorm": _for_few(lambda m, _: _cells(m)),
    "keydiff": _for_few(lambda m, _: _cells(m)),
    "pool_scores": _for_few(lambda m, _: {"kv_heads": m.kv_heads, "held": CONTEXT}),
    "keep_top": _for_few(
        lambda m, _: {"kv_heads": m.kv_heads, "held": CONTEXT, "kept": CONTEXT // 4}
    ),
    "kv_keep": _for_few(lambda m, _: {**_cells(m), "kept": CONTEXT // 4}),
    "page_extremes": _for_few(lambda m, _: {**_pages(m), "capacity": CONTEXT}),
    "page_scores": lambda m, _: [{**_pages(m), "heads": m.heads, "choosers": m.kv_heads}],
    "choose_pages": _choice,
    "softmax": lambda *_: [{"width": CONTEXT}],
    **dict.fromkeys(OF_WIDTH, lambda m, _: [{"width": m.hidden}]),
    "causal_conv1d": lambda m, _: [_recurrent({"width": 2 * m.hidden, "taps": 4, "kept": 3})],
    "ssm_scan": lambda m, _: [_recurrent({"inner": 2 * m.hidden, "state": 16})],
    "ssm_scan_heads": lambda m, _: [
        _recurrent({"heads": m.hidden // 32, "head_dim": 64, "groups": 1, "state": 128})
    ],
    "gated_delta_net": lambda m, _: [
        _recurrent({"groups": 16, "heads": m.hidden // 64, "head_dim": 128, "state": 128})
    ],
    "softcap": lambda m, _: [{"width": m.vocab}],
    "swiglu": _gated("swiglu"),
    "reglu": _gated("reglu"),
    "sparse_linear": _some_neurons,
    "sparse_axpy": _some_neurons,
    "linear_experts": _experts,
    "heads_apart": lambda m, _: [{"heads": m.heads, "width": LATENT[0], "size": LATENT[1]}],
    "heads_joined": lambda m, _: [
        {"heads": m.heads, "width": LATENT[0], "size": LATENT[2], "whole": LATENT[3]}
    ],
    "sum_experts": lambda m, _: [{"used": USED, "hidden": m.hidden}],
    "logit_bias": _for_few(lambda m, _: {"vocab": m.vocab, "biases": 8}),
    "dry": _for_few(lambda m, _: {"vocab": m.vocab, "context": CONTEXT, "breakers": 2}),
}
# Of all other ops, whose axes tell what they are: norms, masks, activations, formats, schemes,
# verification and samplers.
BY_AXES: Mapping[tuple[str, ...], Asked] = {
    ("tokens", "hidden"): lambda m, _: [{"hidden": m.hidden}],
    ("tokens", "neurons"): lambda m, _: [{"neurons": m.ffn}],
    ("tokens", "experts", "used"): lambda *_: [{"experts": EXPERTS, "used": USED}],
    ("tokens", "used"): lambda *_: [{"used": USED}],
    ("tokens", "width"): lambda m, _: [{"width": m.ffn}],
    ("rows", "hidden"): lambda m, tokens: [{"rows": tokens, "hidden": m.ffn}],
    ("groups", "size"): lambda m, tokens: [{"groups": tokens, "size": m.ffn}],
    ("groups", "size", "bits"): lambda m, tokens: [{"groups": tokens, "size": m.ffn, "bits": 8}],
    ("nodes", "vocab"): _for_few(lambda m, tokens: {"nodes": tokens, "vocab": m.vocab}, LOGITS),
    ("vocab",): _for_few(lambda m, _: {"vocab": m.vocab}),
}


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
    ops = dict.fromkeys([*OPS, *(kernel.op for kernel in kernels)])  # a package may have its own
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
