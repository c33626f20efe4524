"""The engine on an emulated GPU: the reference's logits, the same bits for any split of a prompt
and batch, and any number of blocks on either device."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.cuda.emulator import compiler
from conformance.llama.peers.compare import EXACT, PROMISE, Gap, demand_near
from conformance.support.depth import DEEP
from conformance.support.models.formula import MODELS, demand_explained, each_model, exact, prompt
from conformance.support.models.small_families import QUANTISED, SUBJECTS, Subject
from conformance.support.models.small_families import exact as formula_of
from conformance.support.models.small_models import Small
from conformance.support.models.small_recurrent import RECURRENT
from conformance.support.models.sparse_files import SMALL_MODELS, SmallSparse
from conformance.support.models.spelling import Spelling
from conformance.support.on_gpu import Watched, on_gpu, rows
from engine import Engine, PromptLookup, SamplingParams
from engine.cache.session import restore, save
from engine.checks import NumericalError
from engine.gguf.file import GGUFFile
from engine.gpu import device_plan
from engine.gpu.memory import LIBRARY, SPARE
from engine.model import Model
from engine.placement import gpu_index
from engine.placement.budget import GIB, parts
from engine.tokenizer.tokenizer import Tokenizer
from kernels.cuda.fusion.fusions import EVERY_CUDA
from kernels.cuda.runtime.current import taking_the_place
from reference import linear
from reference.linear import linear_of_quantised
from reference.models.transformer import Neurons
from reference.op import Array

pytestmark = pytest.mark.skipif(not compiler(), reason="no C++ compiler for the emulator")
MIXED = Small(format="Q4_0", blocks=3, head_dim=16, finer="Q8_0", seed=1)
LENGTH = 19
FEWER = settings(max_examples=max(1, settings.default.max_examples // 4))


def devices_of(model: Model) -> dict[str, str]:
    """The device of each node."""
    return {step.node.label: step.kernel.target for step in model.steps}


@each_model
def test_logits_equal_the_references(small, tmp_path):
    """Logits are within the ops' own bounds, as on the CPU; blocks with head sizes that no CUDA
    kernel supports stay on the CPU, everything else runs on the GPU."""
    text = prompt(small)
    with on_gpu(small.write(tmp_path / "small.gguf"), kv_format="F32") as model:
        got = rows(model, text, [11]).astype(np.float64)
        where = devices_of(model)
        left = [label for label, target in where.items() if target == "cpu"]
        assert all(label.startswith("blk.") or label == "rows" for label in left)
        assert bool(left) == bool(model.notes)
        assert {where["token_embd"], where["logits"]} == {"cuda"}
    demand_explained(got, small, text)


FAMILIES: dict[str, Subject] = {
    **{n: small for n, small in SUBJECTS.items() if DEEP or small.format == "F32"},
    **{f"{small.architecture}, Q8_0": small for small in QUANTISED["Q8_0"]},
    **{name: RECURRENT[name] for name in ("Qwen 3 Next", "Qwen 3.5")},
}


@pytest.mark.parametrize("small", FAMILIES.values(), ids=FAMILIES)
def test_logits_of_other_families_equal_their_formulas(small, tmp_path):
    """Other families give their formulas' logits, with every node on the GPU, or all but the blocks
    that have an op without a CUDA kernel."""
    text, int8 = prompt(small), small.format == "Q8_0"
    with on_gpu(small.write(tmp_path / "small.gguf"), kv_format="F32") as model:
        got, where = rows(model, text, [11]), devices_of(model)
        lacking = {step.node.op for step in model.steps} - {kernel.op for kernel in EVERY_CUDA}
        assert bool(lacking) == bool(model.notes) == ("cpu" in where.values())
        assert where["logits"] == "cuda"
    truth = formula_of(small, text, **({"linear": linear_of_quantised} if int8 else {}))
    demand_near(got, truth, PROMISE * small.blocks if int8 else EXACT)


@pytest.mark.parametrize("kv_format", ["F16", "Q8_0", "Q4_0"])
def test_cache_formats(kv_format, tmp_path):
    """In any cache format the GPU's logits equal the CPU's within both error bounds."""
    small = replace(MODELS["GQA"], head_dim=32)
    text, path = prompt(small), small.write(tmp_path / "small.gguf")
    with on_gpu(path, kv_format=kv_format) as model:
        assert set(devices_of(model).values()) == {"cuda"}
        got = rows(model, text, [11])
    with on_gpu(path, kv_format=kv_format, device="cpu") as model:
        theirs = rows(model, text, [11])
    # a key or value near a rounding boundary of its format may round either way
    rounding = {"F16": 2.0**-11, "Q8_0": 2.0**-8, "Q4_0": 2.0**-4}[kv_format]
    gap = Gap.between(got, theirs)
    assert gap.nmse <= rounding**2


def linear_of_bf16(x: Array, weight: Array, format: str) -> Array:
    rounded = linear.to_bf16({"x": x.astype(np.float32), "weight": weight, "format": format})
    return linear.linear(**rounded)


@pytest.mark.parametrize("format", ["F32", "F16", "BF16"])
def test_fast_numerics_round_to_bfloat16(format, tmp_path):
    """Matrices and activations are rounded to bfloat16, and prompts use the device's library, which
    is never recorded: the logits are the formula's, with the same bits when sizes recur, in the
    memory that was estimated."""
    small, device = Small(format=format, head_dim=32), Watched()
    text, matrices, half = prompt(small, LENGTH), 7 * small.blocks + 1, LENGTH // 2
    path = small.write(tmp_path / "small.gguf")
    with taking_the_place(device), on_gpu(path, numerics="fast", kv_format="F32") as model:
        assert {s.kernel.variant for s in model.steps if s.node.op == "linear"} == {"bf16"}
        needed = model.executable.partition.needed.total - SPARE - LIBRARY
        assert needed - 256 * 100 < device.total - device.memory()[0] <= needed
        device.multiplied = 0
        got = rows(model, text, [half, half])
        assert device.multiplied == 2 * matrices
        assert np.array_equal(rows(model, text, [half, half]), got)
        assert device.multiplied == 4 * matrices
        assert (half, half) not in {key[1:3] for key in model.executable.device_plan.recorded}
    truth = exact(small, text, linear_of_bf16)
    # a number near a rounding boundary of bfloat16 may round either way
    assert Gap.between(got, truth.astype(np.float32)).nmse <= (2.0**-9) ** 2


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory):
    return MIXED.write(tmp_path_factory.mktemp("gpu") / "mixed.gguf")


@pytest.mark.parametrize("layers", [*range(MIXED.blocks + 2), 99])
def test_gpu_layers_of_any_number(layers, path):
    """The last blocks run on the GPU, and with one more than there are everything does; the logits
    are the reference's, and each cache is on its block's device."""
    text = prompt(MIXED)
    with on_gpu(path, gpu_layers=layers, kv_format="F32") as model:
        got = rows(model, text, [11]).astype(np.float64)
        where = devices_of(model)
        kinds = {name: type(cache) for name, cache in model.caches.items()}
    first = MIXED.blocks - layers
    for i in range(MIXED.blocks):
        expected = "cuda" if i >= first else "cpu"
        assert {t for label, t in where.items() if label.startswith(f"blk.{i}.")} == {expected}
        on_host = kinds[f"blk.{i}.k_cache"] is np.ndarray
        assert on_host == (expected == "cpu")
    rest = {where[label] for label in ("token_embd", "output_norm", "logits")}
    assert rest == {"cuda" if layers > MIXED.blocks else "cpu"}
    assert where["rows"] == ("cuda" if layers else "cpu")
    demand_explained(got, MIXED, text)


@pytest.mark.parametrize(
    "options", [{"n_cpu_moe": 1}, {"n_cpu_moe": 9}, {"cpu_moe": True}], ids=str
)
def test_experts_on_the_cpu(options, tmp_path):
    """The experts of the first blocks, from routing to their sum, run on the CPU, and everything
    else, shared experts included, on the GPU; the logits are the formula's."""
    small = SUBJECTS["Qwen 2, experts"]
    text = prompt(small)
    with on_gpu(small.write(tmp_path / "small.gguf"), kv_format="F32", **options) as model:
        got, where = rows(model, text, [11]), devices_of(model)
    for i in range(min(small.blocks, options.get("n_cpu_moe", small.blocks))):
        labels = [label for label in where if label.startswith(f"blk.{i}.")]
        routed = labels[labels.index(f"blk.{i}.chosen") : labels.index(f"blk.{i}.experts") + 1]
        own = {label for label in labels if where[label] == "cpu"}
        assert own == set(routed), i
        assert f"blk.{i}.ffn_down_exps" in own
    demand_near(got, formula_of(small, text), EXACT)


@pytest.mark.parametrize("name", ["gpt-oss", "GLM 4.5, experts"])
def test_some_blocks_and_experts_on_the_cpu(name, tmp_path):
    """For any blocks and experts on the CPU, mixtures give their formulas' logits."""
    small = SUBJECTS[name]
    path, text, options = small.write(tmp_path / "small.gguf"), prompt(small), {"kv_format": "F32"}
    with on_gpu(path, n_cpu_moe=small.blocks - 1, gpu_layers=2, **options) as model:
        assert {"cpu", "cuda"} == set(devices_of(model).values())
        got = rows(model, text, [11])
    demand_near(got, formula_of(small, text), EXACT)


class Example:
    """A model on the GPU, a text, and its logits after every token, from a single step."""

    def __init__(self, model: Model, small: Small) -> None:
        self.model, self.text = model, prompt(small, LENGTH)
        self.truth = rows(model, self.text, [LENGTH])


BITS: dict[str, tuple[Small, dict[str, Any]]] = {
    "Q4_0": (MIXED, {}),
    "F16": (Small(format="F16", head_dim=32), {}),
    "Q8_0 cache": (Small(format="Q8_0", head_dim=32), {"kv_format": "Q8_0"}),
    "half on the CPU": (MIXED, {"gpu_layers": 2}),
    "the first block on the CPU": (MIXED, {"gpu_layers": 2, "threads": 2}),
    "sparse": (SMALL_MODELS["Q8_0"], {"sparse": "on"}),
    "windows, half on the CPU": (SUBJECTS["Gemma 3"], {"gpu_layers": 3}),
    "experts on the CPU": (SUBJECTS["Granite, experts"], {"cpu_moe": True, "threads": 2}),
    "experts": (SUBJECTS["Qwen 2, experts"], {}),
}


@pytest.fixture(name="told", scope="module", params=BITS)
def _example(request, tmp_path_factory):
    small, options = BITS[request.param]
    path = small.write(tmp_path_factory.mktemp("bits") / "small.gguf")
    with on_gpu(path, outputs=2 * LENGTH, **options) as model:
        yield Example(model, small)


@FEWER
@given(cuts=st.sets(st.integers(1, LENGTH - 1)))
def test_chunks_change_no_bit(told, cuts):
    """For any split of a prompt, launched or recorded, every token's logits have the same bits."""
    sizes = [b - a for a, b in pairwise([0, *sorted(cuts), LENGTH])]
    assert np.array_equal(rows(told.model, told.text, sizes), told.truth)


def test_cuda_graphs_have_the_bits_of_launches(told):
    """Recurring sizes are recorded once as a CUDA graph, which gives the bits of launches."""
    plan = told.model.executable.device_plan
    plan.recorded.clear()
    with patch.object(device_plan, "MOST_KEPT", 0):
        assert np.array_equal(rows(told.model, told.text, [3, 1, 3, 3]), told.truth)
        assert not plan.recorded
    for _ in range(2):
        assert np.array_equal(rows(told.model, told.text, [3, 1, 3, 3]), told.truth)
    assert {key[1:3] for key in plan.recorded} >= {(3, 3), (1, 1)}


def test_batched_sequences_have_the_bits_of_each_alone(told):
    """Two sequences interleaved in one step: each gives the bits it gives alone."""
    model, half = told.model, LENGTH // 2
    model.cells.clear()
    for start in (0, half):
        where = [p for p in range(start, start + half) for _ in range(2)]
        text = [told.text[p] for p in where]
        got = model.step(text, where, [(0,), (1,)] * half, range(2 * half))
        assert np.array_equal(got[::2], told.truth[start : start + half])
        assert np.array_equal(got[1::2], told.truth[start : start + half])


def test_old_activations_are_never_read(told):
    """NaN in all activations of the previous step changes no bit."""
    plan = told.model.executable.device_plan
    whole = np.full(plan.arena.bytes, 0xFF, np.uint8)
    told.model.cells.clear()
    found = []
    for position, token in enumerate(told.text):
        told.model.device.write(plan.arena, whole)
        found.append(told.model.step([token], [position], [(0,)], [0]).copy())
    assert np.array_equal(np.concatenate(found), told.truth)


def with_neurons_on_the_gpu(
    small: SmallSparse, folder: Path, hot: Mapping[int, float]
) -> tuple[Path, float]:
    """The model with an index that places these shares of each block's neurons on the GPU, and a
    budget in GiB that fits them."""
    path, rng = small.write(folder / "small.gguf"), np.random.default_rng(2)
    places = [(rng.random(small.ffn) < hot[i]).astype(np.int32) for i in range(small.blocks)]
    gpu_index.write(gpu_index.path_of(path), gpu_index.GpuIndex(tuple(places), 0, {}))
    with GGUFFile(path) as file:
        sizes = parts(file, context=40, kv_format="F32")
    whole = sum(sizes.dense.values()) + sum(sizes.cache.values())
    return path, (whole + small.blocks * small.ffn * sizes.neuron[0]) / GIB


@pytest.mark.parametrize("format", SMALL_MODELS)
@pytest.mark.parametrize(
    "hot", [{0: 0.5, 1: 0.2}, {0: 0.0, 1: 0.5}, {0: 1.0, 1: 0.0}], ids=["some", "none", "all"]
)
@pytest.mark.parametrize("union", [False, True], ids=["each its own", "union"])
def test_hot_neurons_on_the_gpu_and_cold_on_the_cpu(format, hot, union, tmp_path):
    """Hot neurons on the GPU and cold ones on the CPU give the formula's logits."""
    small = replace(SMALL_MODELS[format], runs=Neurons(0.0, union))
    text = prompt(small)
    path, budget = with_neurons_on_the_gpu(small, tmp_path, hot)
    options = {"vram_budget": budget, "union": union, "kv_format": "F32", "threads": 2}
    with on_gpu(path, **options) as model:
        got = rows(model, text, [LENGTH] if union else [11]).astype(np.float64)
        where = devices_of(model)
        sparsity = model.config.sparsity
        for i in range(small.blocks):
            there = {t for label, t in where.items() if label.startswith(f"blk.{i}.ffn_up")}
            share = sparsity.places[i].mean()
            assert there == {t for t, some in (("cuda", share > 0), ("cpu", share < 1)) if some}
            assert where[f"blk.{i}.attention"] == "cuda"
        assert where["token_embd"] == "cpu"
    demand_explained(got, small, text)


def test_gpu_and_cpu_neurons_run_concurrently(tmp_path):
    """The GPU's neurons are launched before the CPU starts its own, and nothing waits for them
    until the sums are added."""
    small = SMALL_MODELS["F32"]
    path, budget = with_neurons_on_the_gpu(small, tmp_path, {0: 0.5, 1: 0.5})
    with on_gpu(path, vram_budget=budget) as model:
        partition = model.executable.partition
        for i in range(small.blocks):
            labels = [[n.label for n in part.nodes] for part in partition.parts]
            hot = next(k for k, own in enumerate(labels) if f"blk.{i}.ffn_up.gpu" in own)
            cold = next(k for k, own in enumerate(labels) if f"blk.{i}.ffn_up.cpu" in own)
            assert cold == hot + 1
            assert not partition.parts[hot].gives
            assert f"blk.{i}.mask" in labels[hot - 1]
            assert f"blk.{i}.sides" in labels[cold + 1]


class Timeline(Watched):
    """What a step does, in order: each launch, copies to the host as they begin, and as they are
    waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def launch(self, launch, grid, values):
        self.order += [] if grid.empty else [launch.function]
        super().launch(launch, grid, values)

    def ask(self, buffer):
        self.order.append("asked")
        found = super().ask(buffer)

        def wait():
            self.order.append("waited")
            return found()

        return wait


def test_the_gpu_goes_on_while_values_are_copied(tmp_path):
    """Of a step of one token, the GPU's neurons of each block are launched between the moment at
    which the CPU's inputs are asked for and the one at which they are waited for."""
    small, device = SMALL_MODELS["F32"], Timeline()
    path, budget = with_neurons_on_the_gpu(small, tmp_path, {0: 0.5, 1: 0.5})
    with taking_the_place(device), on_gpu(path, vram_budget=budget, kv_format="F32") as model:
        rows(model, [1])
        device.order.clear()
        rows(model, [2])
    waited = [i for i, what in enumerate(device.order) if what == "waited"]
    before = [max(i for i, w in enumerate(device.order[:at]) if w == "asked") for at in waited]
    beside = {i for a, w in zip(before, waited, strict=True) for i in range(a, w)}
    of_neurons = [i for i, what in enumerate(device.order) if what == "sparse_axpy_1"]
    assert len(of_neurons) == small.blocks
    assert beside.issuperset(of_neurons)


@pytest.mark.parametrize("n", [1, 2])
def test_greedy_text_downloads_no_logits(n, tmp_path):
    """Text and log-probabilities equal those computed from downloaded logits; logits stay on the
    GPU except for a prompt's with a single completion."""
    path = Spelling(format="Q8_0", head_dim=32, seed=7).write(tmp_path / "spelling.gguf")
    device = Watched()
    with (
        taking_the_place(device),
        Engine.load(path, threads=1, context=64, device="cuda", sequences=n) as engine,
    ):
        row = 4 * engine.model.config.vocab
        plain = SamplingParams(temperature=0, max_tokens=8, n=n)
        found = {}
        for logprobs in (1, None):  # more log-probabilities would need the logits
            device.read_back.clear()
            device.asked.clear()
            found[logprobs] = list(engine.stream("the cat", replace(plain, logprobs=logprobs)))
            sizes = device.read_back
            if logprobs:
                assert not device.asked
                assert sum(sizes) >= 8 * row
            else:
                assert len(device.asked) >= 8 - (n == 1)
                assert max(device.asked) <= 256 + 4 * n  # log-probabilities, then tokens
                assert sizes == [row] * (2 - n)
        for here, there in zip(found[1], found[None], strict=True):
            assert (here.token, here.text, here.index) == (there.token, there.text, there.index)
            assert here.logprob == pytest.approx(there.logprob, rel=1e-5)


def test_greedy_steps_are_launched_ahead(tmp_path):
    """A greedy token stays on the GPU; a text's end discards the step launched ahead."""
    path = Spelling(format="Q8_0", head_dim=32, seed=7).write(tmp_path / "spelling.gguf")
    plain, context = SamplingParams(temperature=0, max_tokens=8), 20
    with Engine.load(path, threads=1, context=context) as engine:
        expected = [piece.token for piece in engine.stream("the cat", plain)]
        prompt = len(engine.text.held) - 7
    device = Watched()
    with (
        taking_the_place(device),
        Engine.load(path, threads=1, context=context, device="cuda") as engine,
    ):
        cells = engine.model.cells
        device.written.clear()
        assert [piece.token for piece in engine.stream("the cat", plain)] == expected
        sent = [size for size in device.written if size >= 256]  # not lists of cells
        assert sent == [max(sent)] * 2 + [min(sent)] * 6  # prompt and first token: all
        assert min(sent) < max(sent)
        assert cells.lengths[0] == len(engine.text.held) == prompt + 7

        stream = engine.stream("the cat", plain)
        assert [next(stream).token for _ in range(3)] == expected[:3]
        assert cells.lengths[0] == prompt + 3
        stream.close()
        assert cells.lengths[0] == len(engine.text.held) == prompt + 2

        stop = next(token for token in expected if token != expected[0])
        (*_, last) = engine.stream("the cat", replace(plain, stop_token_ids=[stop]))
        assert (last.token, last.finish_reason) == (stop, "stop")
        assert cells.lengths[0] == len(engine.text.held) == prompt + expected.index(stop)

        stream = engine.stream("the cat", plain)
        assert [next(stream).token for _ in range(2)] == expected[:2]
        assert np.isfinite(engine.logits("the mat")).all()  # which ends the pending step
        (*_, last) = engine.stream("the cat", replace(plain, max_tokens=99), context_shift=False)
        assert last.finish_reason in ("length", "stop")
        assert cells.lengths[0] == len(engine.text.held) <= context


@pytest.mark.parametrize("n", [1, 2])
def test_banned_end_tokens_are_not_chosen(n, tmp_path):
    """Greedy text one of whose likeliest tokens is an end, where ends are banned: only there logits
    are downloaded, and the step launched ahead is discarded."""
    path = Spelling(format="Q8_0", head_dim=32, seed=7).write(tmp_path / "spelling.gguf")
    plain = SamplingParams(temperature=0, max_tokens=8, n=n)
    with Engine.load(path, threads=1, context=64, sequences=n) as engine:
        ends = frozenset(piece.token for piece in engine.stream("the cat", plain) if piece.token)
    some = frozenset(sorted(ends)[:1])
    found, device = [], Watched()
    for target in ("cpu", "cuda"):
        with (
            patch.object(Tokenizer, "eog_ids", some),
            taking_the_place(device),
            Engine.load(path, threads=1, context=64, device=target, sequences=n) as engine,
        ):
            device.read_back.clear()
            texts = [replace(plain, ignore_eos=True), replace(plain, min_tokens=8), plain]
            pieces = [list(engine.stream("the cat", params)) for params in texts]
            found.append([(p.index, p.token, p.text) for text in pieces for p in text])
            row = 4 * engine.model.config.vocab
    assert found[0] == found[1]
    assert set(device.read_back) <= {row, n * row}  # a prompt's, and those with banned ends
    assert 0 < len(device.read_back) < len(found[1]) / 2


@pytest.mark.parametrize("bad", [slice(5, 6), slice(0, 256), slice(None)], ids=str)
def test_nan_logits_are_an_error(bad, tmp_path):
    """One NaN, those of a thread block, or all raise an error; and the step's token is not held."""
    small = Small(seed=1, vocab=600)
    path = small.write(tmp_path / "small.gguf")
    (output,) = (t for t in gguf.GGUFReader(path).tensors if t.name == "output.weight")
    data = bytearray(path.read_bytes())
    weight = np.frombuffer(data, np.float32, 600 * small.hidden, int(output.data_offset))
    weight.reshape(600, small.hidden)[bad, 0] = np.nan
    path.write_bytes(data)
    with on_gpu(path) as model:
        for bans in (None, [()]):
            with pytest.raises(NumericalError, match=r"not finite .*after position 0\)"):
                model.rows([6], [0], [(0,)], [0], bans)
            assert not model.cells.positions_of(0).size


def test_drafts_change_no_token(tmp_path):
    """Verifying several tokens in a step gives the text of one after the other."""
    path = Spelling(format="Q4_0", seed=5).write(tmp_path / "spelling.gguf")
    prompt, params = "the cat the cat the cat", SamplingParams(temperature=0, max_tokens=14)
    found = []
    for speculation in (None, PromptLookup(draft_max=3)):
        with Engine.load(
            path, threads=1, context=64, device="cuda", speculation=speculation
        ) as engine:
            found.append([piece.token for piece in engine.stream(prompt, params)])
    assert found[0] == found[1]


@pytest.mark.parametrize(("saver", "goer"), [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")])
def test_sessions_resume_on_any_device(saver, goer, tmp_path):
    """A session continues on another device; on the same one, bit for bit."""
    path, text = MIXED.write(tmp_path / "small.gguf"), prompt(MIXED)
    file, last = tmp_path / "held.session", text[-1]

    def go_on(device: str) -> Array:
        with Engine.load(path, threads=1, context=32, device=device) as engine:
            held = restore(engine, file)
            return engine.model.evaluate([last], len(held)).copy()

    with Engine.load(path, threads=1, context=32, device=saver) as engine:
        engine.logits(text[:-1])
        save(engine, file)
        expected = engine.model.evaluate([last], LENGTH - 1).copy()
    if saver == goer:
        assert np.array_equal(go_on(goer), expected)
    else:
        gap = Gap.between(go_on(goer)[None], expected[None])
        assert gap.nmse <= 2.0**-22  # keys and values near a rounding boundary of F16
