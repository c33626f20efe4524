"""A benchmark's inputs at models' sizes, their cost, and sampled checks of outputs.

Conformance tries awkward shapes; here they are real ones, so making inputs and checking outputs
must be cheap: weights repeat a few rows, and the reference is computed for some tokens and rows
only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from bench.ops.cases import BenchCase, Sizes
from kernels.cpu.formats.packing import BF16_PACKINGS
from kernels.judge import compare
from kernels.kernel import Kernel
from kernels.shapes import ShapeError
from reference.attention import attention_minicache, pattern_attention, prompt_patterns
from reference.attention.pattern_attention import BLOCK
from reference.formats import FORMATS
from reference.op import Arguments, Array, Case, Cost, Op
from reference.schemes import linear_float8, linear_w8a8
from reference.sparse.neuron_masks import active_rows, some_mask, some_slots

ROWS = 61  # distinct rows of a large weight: a prime, so that no group of lanes repeats another
TRUTHS = {"tokens": 3, "rows": 3, "out": 48, "neurons": 48}  # indices of an axis that are checked
# by what activations become
ARITHMETIC = {"float32": "f32", "bf16": "bf16", "int8": "int8", "int8_256": "int8"}
GGML = {"F32": "f32", "F16": "f32", "BF16": "bf16"}  # of its products by the weight, or int8
# axes along which outputs are independent
TOGETHER = {
    **dict.fromkeys(("union_mask", "sort_by_expert", "merge_heads"), ("tokens",)),
    **dict.fromkeys(("block_scores", "prompt_pattern"), ("rows",)),  # each covers a block of tokens
}
# attention's relatives, whose cases see some cells
SEEING = (*prompt_patterns.OPS, pattern_attention.OP, attention_minicache.OP)
COLUMNS = 256  # of sparse_axpy's hidden: whole blocks of every format

Picks = Mapping[str, Array]


@lru_cache(maxsize=1)
def weight(format: str, rows: int, hidden: int) -> Array:
    """uint8 [rows, row_bytes] with ROWS distinct rows; the last one made is cached."""
    rng = np.random.default_rng([rows, hidden])
    few = rng.standard_normal((min(rows, ROWS), hidden)).astype(np.float32)
    data = FORMATS[format].random_like(few, rng)
    return np.resize(data, (rows, data.shape[1]))


def linear(case: Case) -> Arguments:
    s = case.shape
    assert case.format is not None
    x = case.array(case.rng(), s["tokens"], s["hidden"])
    return {"x": x, "weight": weight(case.format, s["out"], s["hidden"]), "format": case.format}


def embedding(case: Case) -> Arguments:
    s = case.shape
    assert case.format is not None
    tokens = case.rng().integers(0, s["vocab"], s["tokens"], dtype=np.int32)
    return {
        "tokens": tokens,
        "weight": weight(case.format, s["vocab"], s["hidden"]),
        "format": case.format,
    }


def sparse_linear(case: Case) -> Arguments:
    rng, s = case.rng(), case.shape
    x = case.array(rng, s["tokens"], s["hidden"])
    mask = some_mask(rng, s["tokens"], s["neurons"], s["active"])
    return {"x": x, "mask": mask, **neurons_of(mask, case)}


def linear_experts(case: Case) -> Arguments:
    """Every expert gets nearly the same number of tokens."""
    s = case.shape
    assert case.format is not None
    experts = np.sort(np.arange(s["tokens"]) % s["experts"])
    rows = weight(case.format, s["held"] * s["out"], s["hidden"])
    return {
        "x": case.array(case.rng(), s["tokens"], s["hidden"]),
        "ends": np.searchsorted(experts, np.arange(s["experts"]), "right").astype(np.int32),
        "weight": rows.reshape(s["held"], s["out"], -1),
        "slots": np.arange(s["experts"], dtype=np.int32) % s["held"],
        "format": case.format,
    }


def sparse_axpy(case: Case) -> Arguments:
    rng, s = case.rng(), case.shape
    mask = some_mask(rng, 1, s["neurons"], s["active"])
    return {"a": case.array(rng, s["tokens"], s["neurons"]), **neurons_of(mask, case)}


def neurons_of(mask: Array, case: Case) -> Arguments:
    """The weights of neurons and the mask's active ones: in order where all rows are held, as in a
    model in memory, else anywhere."""
    neurons, held = case.shape["neurons"], case.shape["held"]
    assert case.format is not None
    rows, count = active_rows(mask)
    slots = np.arange(neurons, dtype=np.int32)
    if held < neurons:
        slots = some_slots(np.random.default_rng(held), rows[: count[0]], neurons, held)
    return {
        "weight": weight(case.format, held, case.shape["hidden"]),
        "rows": rows,
        "count": count,
        "slots": slots,
        "format": case.format,
    }


def repeated(make: Callable[[Case], Arguments]) -> Callable[[Case], Arguments]:
    """An op's output on ROWS rows of weight, which repeat and are the same for any tokens, values
    and seed. Scales by group have columns."""

    def some(case: Case) -> Arguments:
        out = case.shape["out"]
        rows = np.arange(out) % min(out, ROWS)
        found = make(replace(case, shape={**case.shape, "out": 0}))
        few = {**case.shape, "out": min(out, ROWS), "tokens": 0}
        weights = make(replace(case, shape=few, values="normal", seed=0))
        for name in found:
            if name.startswith("weight"):
                found[name] = np.take(weights[name], rows, axis=0 if name == "weight" else -1)
        return found

    return some


def of_all_cells(shape: Sizes) -> Array:
    """Spans of a sequence's last tokens: each sees all cells before it, of as many as `parts` hold
    where an op has them."""
    cells = min(shape["capacity"], shape.get("parts", shape["capacity"]) * BLOCK)
    ends = np.arange(cells - shape["tokens"], cells) + 1
    return np.stack([0 * ends, 0 * ends, ends], axis=1).astype(np.int32)


def seeing_all(op: Op) -> Callable[[Case], Arguments]:
    """An op's inputs with tokens that see all cells and pages, as its cost has it. Of twice as many
    tokens the second half sees all pages; cells that none saw were NaN."""
    by_token = [i.name for i in op.inputs if i.axes[:1] == ("tokens",)]

    def some(case: Case) -> Arguments:
        s, tokens = case.shape, case.shape["tokens"]
        given = op.make(replace(case, shape={**s, "tokens": 2 * tokens}))
        given |= {name: given[name][tokens:] for name in by_token}
        given |= {"spans": of_all_cells(s)}
        if "k" in given:
            assert case.format is not None
            k = weight(case.format, s["capacity"], s["kv_heads"] * s["head_dim"])
            given |= {name: k for name in ("k", "v") if name in given}
            given |= {"lists": np.arange(s["capacity"], dtype=np.int32)[None]}
        if "sees" in given:
            given["sees"] = np.full_like(given["sees"], 255)
        return given | ({"last": 64} if "last" in given else {})

    return some


def attention(case: Case) -> Arguments:
    """The last tokens of one sequence that fills the cache: each sees those before it."""
    s = case.shape
    assert case.format is not None
    k = weight(case.format, s["capacity"], s["kv_heads"] * s["head_dim"])
    spans = of_all_cells(s)
    positions = spans[:, 2] - 1
    return {
        "q": case.array(case.rng(), s["tokens"], s["heads"], s["head_dim"]),
        "k": k,
        "v": np.roll(k, 1, axis=0),
        "lists": np.arange(s["capacity"], dtype=np.int32)[None],
        "spans": spans,
        "positions": positions,
        "cell_positions": np.arange(s["capacity"], dtype=np.int32),
        "slopes": np.zeros(s["heads"], np.float32),
        "sinks": np.full(s["heads"], -np.inf, np.float32),
        "scale": s["head_dim"] ** -0.5,
        "softcap": 0.0,
        "format": case.format,
    }


MAKERS: Mapping[str, Callable[[Case], Arguments]] = {
    "linear": linear,
    "embedding": embedding,
    "attention": attention,
    "sparse_linear": sparse_linear,
    "sparse_axpy": sparse_axpy,
    "linear_experts": linear_experts,
    "linear_w8a8": repeated(linear_w8a8.OP.make),
    **{op.name: repeated(op.make) for op in linear_float8.OPS},
    **{op.name: seeing_all(op) for op in SEEING},
}


def cost_shape(op: str, shape: Sizes) -> Mapping[str, float]:
    """The sizes that determine the cost: for attention, the mean number of cells that a token
    sees."""
    if op == "attention":
        return {**shape, "capacity": shape["capacity"] - (shape["tokens"] - 1) / 2}
    return shape


def format_read(kernel: Kernel) -> str | None:
    """The format whose bytes a kernel reads, and its cost counts: the weight's, or the one it
    rounds the weight to when packing."""
    return "BF16" if kernel.pack and kernel.pack in BF16_PACKINGS.values() else kernel.format


def arithmetic_of(numerics: str, format: str | None) -> str:
    """The machine's peak that applies to inputs rounded so."""
    if numerics == "ggml":
        return GGML.get(format or "F32", "int8")
    return ARITHMETIC.get("bf16" if numerics == "fast" else numerics, "f32")


@dataclass(frozen=True, slots=True)
class Workload:
    """One kernel's work at one size: makes inputs, knows the cost, checks outputs. Inputs are
    ordinary ones, or those of a given `case`."""

    bench: BenchCase
    cost: Cost
    case: Case | None = None

    @classmethod
    def of(cls, bench: BenchCase) -> "Workload":
        spec = bench.kernel.spec
        # a size may be fractional here, though no array's is
        cost = spec.cost(cost_shape(spec.name, bench.shape), format_read(bench.kernel))  # type: ignore[arg-type]
        return cls(bench, cost)

    @classmethod
    def on(cls, kernel: Kernel, case: Case) -> "Workload":
        """The workload of any case: its values and seed, and any sizes."""
        work = cls.of(BenchCase(kernel, case.shape, ()))
        if not _beyond_models(case):
            return replace(work, case=case)
        begin, end = kernel.spec.make(case)["spans"][:, 1:].T
        seen = (
            float(np.mean(end - begin)) if end.size else 0.0
        )  # cells seen, which determine the cost
        cost = kernel.spec.cost({**case.shape, "capacity": seen}, kernel.format)  # type: ignore[dict-item]
        return cls(work.bench, cost, case)

    @property
    def arithmetic(self) -> str:
        """The machine's peak that applies to it."""
        kernel = self.bench.kernel
        whole = kernel.spec.inputs[0].dtype == "i8"  # no kernel rounds these
        return ARITHMETIC["int8" if whole else kernel.activations]

    def inputs(self) -> Arguments:
        op = self.bench.kernel.spec
        case = self.case or op.case(self.bench.shape, "normal", 0, self.bench.kernel.format)
        made = (op.make if _beyond_models(case) else MAKERS.get(op.name, op.make))(case)
        if complaint := op.complaint(made):
            raise ShapeError(f"{op.name}: {complaint}")
        return made

    def again(self, inputs: Arguments, seed: int) -> Arguments:
        """The same weights and indices, but other numbers in float32 arrays."""
        rng = np.random.default_rng(seed)
        return {
            name: np.roll(value, int(rng.integers(1, value.size)))
            if isinstance(value, np.ndarray) and value.dtype == np.float32 and value.size > 1
            else value
            for name, value in inputs.items()
        }

    def check(self, inputs: Arguments, outputs: Mapping[str, Array], seed: int) -> str:
        """The complaint about some of these outputs, tokens and rows drawn by `seed`; or ""."""
        kernel = self.bench.kernel
        picks = _picks(kernel.spec, self.bench.shape, seed)
        some_in, some_out = _cut(kernel.spec, picks, inputs, outputs)
        shape = {**self.bench.shape, **{axis: len(some) for axis, some in picks.items()}}
        case = kernel.spec.case(shape, "normal", seed, kernel.format)
        return compare(kernel, case, some_in, some_out).failure


def _beyond_models(case: Case) -> bool:
    """Whether attention has features that no benchmark has: theirs is plain, over one sequence."""
    s = case.shape
    if not {"tokens", "capacity", "sequences"} <= s.keys():
        return False
    special = s.get("windowed") or s.get("alibi") or s.get("softcapped")
    return bool(special or s["sequences"] > 1 or s["tokens"] > s["capacity"])


def _picks(op: Op, shape: Sizes, seed: int) -> Picks:
    """Indices along the axes on which outputs are independent: the axes that they have, except
    kv_write's cells, which are no tokens, and tokens that are summed over."""
    rng = np.random.default_rng(seed)
    picks = {
        axis: np.sort(rng.permutation(shape[axis])[:count])
        for axis, count in TRUTHS.items()
        if axis in shape
        and all(axis in output.axes for output in op.outputs)
        and axis not in TOGETHER.get(op.name, ())
    }
    if op.name == "sparse_axpy":
        begin = int(rng.integers(-(-shape["hidden"] // COLUMNS))) * COLUMNS
        picks["hidden"] = np.arange(begin, min(begin + COLUMNS, shape["hidden"]))
    return picks


def _cut(
    op: Op, picks: Picks, inputs: Arguments, outputs: Mapping[str, Array]
) -> tuple[Arguments, dict[str, Array]]:
    """The picked part of every array."""
    axes = {argument.name: argument.axes for argument in op.inputs + op.outputs}
    in_bytes = {argument.name for argument in op.inputs if argument.dtype == "format"}

    def part(name: str, value: Array) -> Array:
        for dim, axis in enumerate(axes.get(name, ())):
            if axis in picks:
                of_row = name in in_bytes and dim == value.ndim - 1
                picked = _bytes(picks[axis], inputs["format"]) if of_row else picks[axis]
                value = np.take(value, picked, axis=dim)
        return value

    some_in = {name: part(name, value) for name, value in inputs.items()}
    if op.name == "sparse_linear":  # its rows follow from the mask
        some_in["rows"], some_in["count"] = active_rows(some_in["mask"])
    if op.name == "linear_experts":
        ends = np.searchsorted(picks["tokens"], np.asarray(inputs["ends"]))
        some_in["ends"] = ends.astype(np.int32)
    return some_in, {name: part(name, value) for name, value in outputs.items()}


def _bytes(columns: Array, format: str) -> Array:
    """Byte indices of these columns, whole blocks, in a row of a weight."""
    begin, end = (FORMATS[format].row_bytes(int(c)) for c in (columns[0], columns[-1] + 1))
    return np.arange(begin, end)
