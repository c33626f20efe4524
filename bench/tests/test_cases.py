"""Benchmarks run at the sizes of real models, and errors in shape files name their place."""

import math
from dataclasses import replace

import numpy as np
import pytest

from bench.ops.cases import LOGITS, TOKENS, BenchCase, asked, cases
from bench.ops.workload import TRUTHS, Workload, cost_shape, weight
from data import shapes
from data.shapes import ShapeError
from engine.embedded import resolve
from engine.gguf.file import GGUFFile
from engine.metadata.config import config_of
from kernels.table import KERNELS, find
from reference.table import OPS

ALL = shapes.read()
TINY = ALL.models["tinyllama-1.1b"]
PARAMETERS = {  # of the models' cards, in thousand millions
    "tinyllama-1.1b": 1.10,
    "llama-2-7b": 6.74,
    "relullama-7b": 6.74,
    "llama-3-8b": 8.03,
    "qwen2-7b": 7.62,
}


def test_every_op_kernel_and_model_has_cases():
    """No op of the table is left out, no kernel, no number of tokens; each model has cases, its
    rope its own. A kernel runs at a size once, under the names of all models that ask for it, and
    sizes are just its op's axes, as it takes them."""
    found = cases(ALL)
    assert {case.kernel.name for case in found} == {kernel.name for kernel in KERNELS}
    assert len({str(case) for case in found}) == len(found)
    tokens: dict[str, set[int]] = {op: set() for op in OPS}
    for case in found:
        if "tokens" in case.shape and "sweep" not in case.models:
            tokens[case.kernel.op].add(case.shape["tokens"])
        assert len(set(case.models)) == len(case.models)
    assert all(counts in (set(), set(TOKENS)) for counts in tokens.values())
    for name, model in ALL.models.items():
        ops = {case.kernel.op for case in found if name in case.models}
        assert {"linear", "attention", "rms_norm", "embedding", model.rope} <= ops
        assert not {"rope_norm", "rope_neox"} - {model.rope} & ops
    alike = {"llama-2-7b", "relullama-7b"}  # but for their gates
    both = [c for c in found if alike & set(c.models) and c.kernel.op not in ("swiglu", "reglu")]
    assert all(alike <= set(case.models) for case in both)
    for case in {str(c.shape) + c.kernel.op: c for c in found}.values():
        spec = case.kernel.spec
        assert set(case.shape) == set(spec.axes), case
        assert dict(spec.case(case.shape, "normal", 0, case.kernel.format).shape) == case.shape


def test_tinyllama_by_hand():
    """The products of TinyLlama-1.1B: as its paper's sizes say."""
    products = {(s["hidden"], s["out"]) for s in asked("linear", TINY, 1)}
    # q and o, k and v, gate and up, down, logits
    assert products == {(2048, 2048), (2048, 256), (2048, 5632), (5632, 2048), (2048, 32000)}
    assert {(s["heads"], s["head_dim"], s["pairs"]) for s in asked("rope_norm", TINY, 8)} == {
        (32, 64, 32),
        (4, 64, 32),
    }
    (attention,) = asked("attention", TINY, 8)
    wanted = {"tokens": 8, "heads": 32, "kv_heads": 4, "head_dim": 64, "capacity": 512}
    assert wanted.items() <= attention.items()
    assert list(asked("kv_write", TINY, 1)) == [{"tokens": 1, "capacity": 512, "width": 256}]
    assert list(asked("swiglu", TINY, 512)) == [{"tokens": 512, "width": 5632}]
    for tokens in TOKENS:  # a step of a prompt does not make all logits
        outs = {shape["out"] for shape in asked("linear", TINY, tokens)}
        assert (TINY.vocab in outs) == (tokens <= LOGITS)
    assert list(asked("draw", TINY, 1)) == [{"vocab": 32000}]
    assert list(asked("active_rows", TINY, 8)) == [{"tokens": 8, "neurons": 5632}]
    block = {"tokens": 1, "hidden": 2048, "neurons": 5632, "held": 5632}
    for op in ("sparse_linear", "sparse_axpy"):
        assert list(asked(op, TINY, 1)) == [block | {"active": n} for n in (563, 5632)]


@pytest.mark.parametrize("name", PARAMETERS)
def test_weights_add_up_to_the_models(name):
    """The matrices at a model's sizes hold as many parameters as its name says."""
    m = ALL.models[name]
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    block = 2 * m.hidden * q + 2 * m.hidden * kv + 3 * m.hidden * m.ffn
    total = m.blocks * block + 2 * m.vocab * m.hidden
    assert total / 1e9 == pytest.approx(PARAMETERS[name], abs=0.01)


def test_the_embedded_model_is_itself():
    """The sizes called story are those in its file."""
    with GGUFFile(resolve("story")) as file:
        config = config_of(file.metadata, 0)
        vocab = file.tensors["token_embd.weight"].dims[0]
    story = ALL.models["story"]
    for name in ("blocks", "hidden", "ffn", "heads", "kv_heads", "head_dim", "context"):
        assert getattr(story, name) == getattr(config, name), name
    assert story.vocab == vocab


def test_work_of_a_case_costs_what_its_op_says():
    """The cost is the op's own; of causal attention, the cells that a token sees on average."""
    linear = next(c for c in cases(ALL) if str(c).startswith("linear/cpu/generic/F32 tokens=8,"))
    assert Workload.of(linear).cost == OPS["linear"].cost(linear.shape, "F32")
    shape = {"tokens": 8, "capacity": 512}
    seen = [512 - 8 + 1 + i for i in range(8)]
    assert cost_shape("attention", shape)["capacity"] == sum(seen) / 8
    assert cost_shape("softmax", shape) is shape


PACKED = [kernel for kernel in KERNELS if kernel.op == "linear" and kernel.pack]


@pytest.mark.parametrize("row", PACKED, ids=lambda kernel: kernel.name)
def test_no_more_weight_is_counted_than_is_read(row):
    """On any CPU: a kernel that packs float32 as bfloat16 reads half of the file's bytes, and a
    cost of all of them would exceed the machine's limit."""
    shape = {"tokens": 1, "hidden": 1024, "out": 64}
    packed = row.pack.memory(weight(row.format, shape["out"], shape["hidden"]))
    activations = 4 * (shape["hidden"] + shape["out"])
    assert Workload.of(BenchCase(row, shape, ())).cost.bytes <= packed.nbytes + activations


@pytest.mark.parametrize("name", ["sparse_linear/cpu/generic/F16", "sparse_axpy/cpu/generic/Q4_0",
                                  "union_mask/cpu/generic", "active_rows/cpu/generic"])  # fmt: skip
def test_sampled_checks_of_active_neurons(name):
    """The reference's output passes in every sampled part, and an error in half of it is found."""
    shape = {"tokens": 8, "hidden": 512, "neurons": 200, "active": 150, "held": 170}
    kernel = find(name)
    case = BenchCase(kernel, {axis: shape[axis] for axis in kernel.spec.axes}, ())
    work = Workload.of(case)
    inputs = work.inputs()
    right, told = kernel.spec.expected(inputs), set()
    wrong = {n: np.where(np.arange(v.shape[-1]) % 2, v, v + 1) for n, v in right.items()}
    for seed in range(20):
        assert not work.check(inputs, right, seed)
        told.add(bool(work.check(inputs, wrong, seed)))
    assert told == {True}


def test_sampled_checks_move_about():
    """The checked tokens and rows change from check to check; small axes are checked whole."""
    case = next(c for c in cases(ALL) if str(c).startswith("add/cpu/generic tokens=512,"))
    work, seen = Workload.of(case), set()
    inputs = work.inputs()
    right = case.kernel.spec.expected(inputs)["out"]
    for seed in range(60):
        wrong = right.copy()
        wrong[: case.shape["tokens"] // 2] = 0  # half of the tokens
        seen.add(bool(work.check(inputs, {"out": wrong}, seed)))
    assert seen == {True, False}
    assert math.prod(TRUTHS.values()) > 1
    tiny = replace(case, shape={"tokens": 2, "width": 4})
    inputs = Workload.of(tiny).inputs()
    wrong = case.kernel.spec.expected(inputs)["out"].copy()
    wrong[-1, -1] += 1
    assert Workload.of(tiny).check(inputs, {"out": wrong}, 0)


GOOD = """
[models.m]
blocks = 1
hidden = 32
ffn = 64
heads = 2
kv_heads = 1
head_dim = 16
vocab = 100
context = 64
"""
BAD = {
    "no text": ("\udcff", ""),
    "no toml": ("[models", "at end of document"),
    "another table": ("[poems]", "there is no 'poems': models, sweeps"),
    "a model of number": ("[models]\nm = 5", "models.m: want a table, got 5"),
    "an unknown axis": (GOOD + "colour = 3", "models.m has no axis 'colour': blocks, hidden"),
    "a missing axis": (GOOD.replace("vocab = 100", ""), "models.m lacks 'vocab'"),
    "a negative size": (GOOD.replace("100", "-5"), "models.m: vocab is a size of at least 1"),
    "a size of truth": (GOOD.replace("100", "true"), "models.m: vocab is a size"),
    "odd heads": (GOOD.replace("heads = 2", "heads = 3", 1).replace("kv_heads = 1", "kv_heads = 2"),
                  "models.m: 3 heads are no multiple of 2 kv_heads"),
    "a strange rope": (GOOD + 'rope = "knot"', "models.m: rope is one of rope_norm, rope_neox"),
    "a strange gate": (GOOD + 'gate = "relu"', "models.m: gate is one of swiglu, geglu, reglu"),
    "sweeps of number": ("sweeps = 5", "sweeps are written [[sweeps]]"),
    "a sweep of number": ("sweeps = [5]", "sweep 1: want a table, got 5"),
    "a sweep of nothing": ("[[sweeps]]\nop = 'add'", "sweep 1: want op and shapes"),
    "an unknown op": ("[[sweeps]]\nop = 'knit'\nshapes = []", "sweep 1: there is no op 'knit'"),
    "an axis the op has not": (
        "[[sweeps]]\nop = 'add'\nshapes = [{tokens = 1, rows = 2}]",
        "sweep 1: add has no axis 'rows': tokens, width",
    ),
    "an axis it lacks": (
        "[[sweeps]]\nop = 'add'\nshapes = [{tokens = 1, width = 1}, {tokens = 1}]",
        "sweep 1: add lacks the axis 'width'",
    ),
    "a negative sweep": (
        "[[sweeps]]\nop = 'add'\nshapes = [{tokens = 1, width = -2}]",
        "sweep 1: width is a size, got -2",
    ),
    "a shape of number": ("[[sweeps]]\nop = 'add'\nshapes = [5]", "sweep 1: want a table, got 5"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_shape_file_is_told(tmp_path, name):
    """Any error in a shape file: one line with file and place."""
    text, told = BAD[name]
    path = tmp_path / "mine.toml"
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(ShapeError) as caught:
        cases(shapes.read(path))
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert told in line
    assert "\n" not in line


def test_a_shape_file_of_ones_own(tmp_path):
    """Models and sweeps of another file give cases of their own; the defaults of rope and gate."""
    path = tmp_path / "mine.toml"
    sweep = "[[sweeps]]\nop = 'add'\nshapes = [{width = 7, tokens = 3}]"
    path.write_text(GOOD + sweep)
    mine = shapes.read(path)
    assert (mine.models["m"].rope, mine.models["m"].gate) == ("rope_norm", "swiglu")
    found = cases(mine, kernels=[find("add/cpu/generic")], tokens=(1,))
    assert {(c.sizes, c.models) for c in found} == {
        ("tokens=1,width=32", ("m",)),
        ("width=7,tokens=3", ("sweep",)),
    }
