"""Fused kernels give the bits of the kernels they replace, in trials and in the engine."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.cuda.emulator import compiler
from conformance.support.machine_kernels import cases
from conformance.support.models.formula import prompt
from conformance.support.models.small_models import Small
from conformance.support.on_gpu import Watched, on_gpu, rows
from engine.compile.plan import Step
from engine.gpu import partition
from engine.graph import Node, Value
from engine.passes.fuse import GpuStep, fuse
from kernels import dispatch
from kernels.certificates import Certificate, Key, Store
from kernels.cuda.fusion.fusions import ADD, FUSED, NORM
from kernels.cuda.fusion.joined import ROUND
from kernels.cuda.runtime.current import taking_the_place
from kernels.cuda.runtime.device import EMULATED
from kernels.dispatch import Dispatcher, UncertifiedError
from kernels.domain import extent
from kernels.judge import judge
from kernels.trial import demanded
from reference.op import same_shape

pytestmark = pytest.mark.skipif(not compiler(), reason="no C++ compiler for the emulator")
EACH = pytest.mark.parametrize("kernel", FUSED, ids=[kernel.name for kernel in FUSED])
BY_NAME = {kernel.name: kernel for kernel in FUSED}
assert len(BY_NAME) == len(FUSED)


@EACH
def test_fused_kernels_pass_the_quick_cases(kernel, record_property):
    found = demanded(kernel)
    record_property("certificate", (kernel.name, found.cases))
    assert found.cases >= 8
    assert found.passed, found.failure


@EACH
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_fused_kernels_of_any_sizes(kernel, data):
    case = data.draw(cases(kernel).filter(lambda case: kernel.takes(case.shape)))
    verdict = judge(kernel, case)
    assert verdict.passed, verdict.failure


@EACH
def test_intermediate_values_are_stored(kernel):
    """Intermediate values of a fused kernel are stored too, for other readers."""
    written = {output.name for output in kernel.spec.outputs}
    outputs = (m.called(output.name) for m in kernel.members for output in m.kernel.spec.outputs)
    assert written >= set(outputs)


@pytest.mark.parametrize(
    "other",
    [{"axes": {"tokens": (1,), "hidden": (32,)}}, {"corners": ()}, {"fit": same_shape}],
    ids=["axes", "corners", "fit"],
)
def test_certificates_of_fused_kernels_bind_their_cases(other):
    kernel = BY_NAME["add_norm_round/cuda/generic"]
    assert Key.of(replace(kernel, **other), EMULATED) != Key.of(kernel, EMULATED)


def value(name: str) -> Value:
    return Value(name, "activation", "f32", ("tokens", 64))


def add(x: str, y: str, out: str) -> GpuStep:
    arguments = {"x": value(x), "y": value(y), "out": value(out)}
    return Step(Node("add", arguments), ADD)


def norm(x: str, out: str) -> GpuStep:
    weight = Value("w", "weight", "f32", (64,))
    arguments = {"x": value(x), "weight": weight, "eps": 1e-5, "out": value(out)}
    return Step(Node("rms_norm", arguments), NORM)


def rounding(x: str) -> GpuStep:
    arguments = {"x": value(x)} | {name: value(f"{x}.{name}") for name in ("q", "scale", "total")}
    return Step(Node("quantise_activations", arguments), ROUND)


@pytest.mark.parametrize(
    ("steps", "groups"),
    [
        ([add("a", "b", "c"), norm("c", "d"), rounding("d")], ["add_norm_round"]),
        ([add("a", "b", "c"), norm("c", "d"), add("c", "d", "e")], ["add_norm", ""]),
        ([norm("c", "d"), rounding("d"), add("a", "b", "c")], ["norm_round", ""]),
        # of another value
        ([add("a", "b", "c"), norm("a", "d"), rounding("d")], ["", "norm_round"]),
        ([add("a", "b", "c"), norm("c", "d"), rounding("c")], ["add_norm", ""]),
        ([norm("c", "d")], [""]),
        ([], []),
    ],
    ids=lambda given: "+".join(given) if given and isinstance(given[0], str) else None,
)
def test_consecutive_nodes_are_fused(steps, groups):
    found = fuse(steps, FUSED)
    assert [step for group in found for step in group.steps] == list(steps)
    assert [group.fused.op if group.fused else "" for group in found] == groups


def test_shorter_fusions_serve_unsupported_sizes(tmp_path):
    """Three tokens in a block format: gate and up are joined, the activation is rounded."""
    device = Watched()
    with taking_the_place(device), on_gpu(OF_BLOCKS.write(tmp_path / "small.gguf")) as model:
        device.launched.clear()
        rows(model, prompt(OF_BLOCKS, 3), [3])
    assert device.launched["linear_pair_8"] == device.launched["swiglu_round"] == 2
    assert not device.launched.keys() & {"linear_swiglu_round", "swiglu"}


def test_fused_kernels_are_tried_within_their_token_limit(tmp_path, monkeypatch):
    """A kernel for up to eight tokens serves an engine of 512; on a GPU sizes are certified."""
    pair, store = BY_NAME["linear_pair/cuda/generic/Q4_0"], Store(tmp_path / "certificates.jsonl")
    tried = [case for case in pair.spec.quick_cases(pair.format) if pair.takes(case.shape)]

    def certify(requests, *_):
        assert [request.kernel for request in requests] == [pair.name]
        store.add([Certificate(pair.name, Key.of(pair).digest, "quick", len(tried), 0.0, 0.0, 0.1,
                               "2026-11-27", axes=extent(tried))])  # fmt: skip

    monkeypatch.setattr(dispatch, "emulated", lambda _: False)
    monkeypatch.setattr(dispatch, "certify", certify)
    assert Dispatcher(store, limits={"tokens": 512}).passing([pair]) == [pair]


def test_a_failed_fused_kernel_is_replaced(tmp_path):
    """Single kernels replace it, notes say why; in strict mode that is an error."""
    wrong, right = BY_NAME["add_norm/cuda/generic"], BY_NAME["norm_round/cuda/generic"]
    store = Store(tmp_path / "certificates.jsonl")
    failed = Certificate(
        wrong.name, Key.of(wrong).digest, EMULATED, 1, -1.0, -1.0, 0.1, "2026-01-01", "wrong"
    )
    store.add([failed])
    dispatcher = Dispatcher(store)
    assert dispatcher.passing([wrong, right]) == [right]
    assert dispatcher.notes == ["add_norm/cuda/generic failed its trial and is not used: wrong"]
    kept = store.get(right)
    assert (kept.level, kept.passed) == (EMULATED, True)
    with pytest.raises(UncertifiedError, match="add_norm/cuda/generic failed its trial"):
        Dispatcher(store, strict=True).passing([wrong])


HALF = Small(format="F16", blocks=2, head_dim=32)
OF_BLOCKS = replace(HALF, format="Q4_0")
# of two blocks; neither the first norm nor the last follows a sum
ALIKE = {"embedding": 2, "rotation": 1, "rope_norm_write": 2, "attention_few": 2, "add": 1}
ONE_TOKEN = {"linear_trio_1": 2, "linear_1": 5}
ON_TENSOR_CORES = {"linear_tensor_trio_8": 2, "linear_swiglu": 2, "linear_tensor_8": 5}
STEPS = {
    "F16": (HALF, {"rms_norm": 2, "add_norm": 3, "attention_merge": 2} | ON_TENSOR_CORES),
    "Q4_0": (
        OF_BLOCKS,
        {"norm_round": 2, "add_norm_round": 3, "attention_merge_round": 2}
        | {"linear_swiglu_round": 2}
        | ONE_TOKEN,
    ),
    "Q4_K": (
        replace(HALF, format="Q4_K", hidden=256, heads=8, ffn=512),
        {"norm_round_256": 2, "add_norm_round_256": 3, "attention_merge": 2, "swiglu_round_256": 2}
        | {"quantise_activations_256": 2, "linear_pair_1": 2}
        | ONE_TOKEN,
    ),
}


@pytest.mark.parametrize("kind", STEPS)
def test_launches_per_decode_step(kind, tmp_path):
    """Nine launches a block instead of 18 or 22 kernels; eleven in a K format, where neither heads
    nor a thread block's rows are whole superblocks."""
    small, expected = STEPS[kind]
    device = Watched()
    with taking_the_place(device), on_gpu(small.write(tmp_path / "small.gguf")) as model:
        text = prompt(small, 3)
        rows(model, text, [2])
        device.launched.clear()
        model.step([text[2]], [3], [(0,)], [0])
    assert device.launched == ALIKE | expected


# The first block's attn_v has another format: only later blocks can fuse three matrices.
@pytest.mark.parametrize("small", [HALF, OF_BLOCKS], ids=["F16", "Q4_0"])
def test_fusion_changes_no_bit_of_the_logits(small, tmp_path):
    """Logits equal those of single kernels bit for bit, for few and many tokens."""
    path, text = small.write(tmp_path / "small.gguf"), prompt(small)
    with on_gpu(path) as model:
        assert model.executable.partition.layout.fused()
        got = rows(model, text, [11, 1, 3])
    with patch.object(partition, "FUSED", ()), on_gpu(path) as model:
        assert not model.executable.partition.layout.fused()
        assert np.array_equal(rows(model, text, [11, 1, 3]), got)
