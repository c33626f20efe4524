"""engine/gpu: memory estimates, and errors in one line."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.cuda.emulator import Emulator, compiler
from conformance.support.models.small_families import SmallGemma4
from conformance.support.models.small_models import Small
from conformance.support.models.sparse_files import SMALL_MODELS
from conformance.support.on_gpu import Watched
from conformance.support.program import fault
from engine.config import ModelError
from engine.gpu.memory import SPARE
from engine.gpu.partition import Partition
from engine.model import Model
from engine.options import Options
from engine.passes.observe import observe
from kernels.certificates import Certificate, Key, Store
from kernels.cuda.runtime import current, gpu
from kernels.cuda.runtime.current import taking_the_place
from kernels.cuda.runtime.device import DeviceError
from kernels.cuda.runtime.kernel import CudaKernel
from kernels.cuda.runtime.launch import Grid, Launch
from kernels.cuda.table import CUDA_KERNELS
from kernels.dispatch import Dispatcher, KernelSpec, UncertifiedError
from reference.quantise_activations import QUANTISING

SMALL = Small(format="Q4_0", blocks=3, seed=1)
needs_compiler = pytest.mark.skipif(not compiler(), reason="no C++ compiler for the emulator")


@pytest.fixture(name="path", scope="module")
def _path(tmp_path_factory):
    return SMALL.write(tmp_path_factory.mktemp("room") / "small.gguf")


def loaded(path: Path, **options: Any) -> Model:
    return Model(path, Options(**{"threads": 1, "context": 32, "device": "cuda", **options}))


def partition_of(model: Model) -> Partition:
    return model.executable.partition


@needs_compiler
@pytest.mark.parametrize("layers", [-1, 1, 3])
def test_allocated_memory_equals_the_estimate(layers, path):
    """A model takes the estimated memory, minus the reserve for kernels and rounding to whole
    pages; closing it frees everything."""
    device = Emulator()
    with taking_the_place(device):
        model = loaded(path, gpu_layers=layers)
        needed = partition_of(model).needed.total - SPARE
        taken = device.total - device.memory()[0]
        assert needed - 256 * 100 < taken <= needed
        model.close()
        del model
        gc.collect()
        assert device.memory() == (device.total, device.total)


@needs_compiler
def test_blocks_that_share_keys_stay_together(tmp_path):
    """Gemma 4's last blocks read the keys of an earlier one: they are never split from it."""
    path = SmallGemma4().write(tmp_path / "small.gguf")
    with taking_the_place(Emulator()):
        for layers in (5, 7):
            loaded(path, gpu_layers=layers).close()
        with pytest.raises(ModelError, match="_cache is read by blocks of the GPU and of the CPU"):
            loaded(path, gpu_layers=2)


@needs_compiler
def test_too_little_memory_is_refused_before_allocating(path):
    """The error names the amounts and the gpu_layers that fit, which then do."""
    with taking_the_place(Emulator()):
        model = loaded(path)
        needed = partition_of(model).needed.total
        model.close()
    device = Watched(needed - 1)
    with taking_the_place(device), pytest.raises(ModelError) as caught:
        loaded(path)
    assert not device.wanted
    said = str(caught.value)
    assert said.startswith("emulated: the model needs 0.0")
    assert "for weights" in said
    fitting = int(said.split("gpu_layers=")[1].split()[0])
    assert 0 < fitting <= SMALL.blocks
    with taking_the_place(Emulator(needed - 1)):
        loaded(path, gpu_layers=fitting).close()
        with pytest.raises(ModelError, match=f"gpu_layers={fitting} would fit"):
            loaded(path, gpu_layers=fitting + 1)
    with taking_the_place(Emulator(SPARE)), pytest.raises(ModelError, match="not even one block"):
        loaded(path)


class DisappearingGpu(Emulator):
    """A GPU that disappears after `launches` launches."""

    def __init__(self, launches: int) -> None:
        super().__init__()
        self.left = launches

    def launch(self, launch: Launch, grid: Grid, values: Sequence[Any]) -> None:
        self.left -= 1
        if self.left < 0:
            raise DeviceError("emulated: the device was lost")
        super().launch(launch, grid, values)


@needs_compiler
def test_hidden_states_on_a_gpu_are_refused(path):
    """They are not available on a GPU, which one line says before a step is run."""
    with taking_the_place(Emulator()):
        model = loaded(path)
        with pytest.raises(ModelError, match="hidden states need the CPU: load without a GPU"):
            model.hidden([5], [0], [(0,)], [0])
        assert not model.cells.lengths[0]
        model.close()


@needs_compiler
def test_a_lost_device_ends_the_step(path):
    """The step ends with one error, its tokens are not held, and the CPU continues."""
    loaded(path).close()  # certifies the kernels
    device = DisappearingGpu(1000)
    with taking_the_place(device):
        model = loaded(path)
        model.evaluate([5, 6], 0)
        device.left = 10
        with pytest.raises(DeviceError, match="the device was lost"):
            model.evaluate([7], 2)
        assert model.cells.positions_of(0).tolist() == [0, 1]
        model.close()
    model = loaded(path, device="cpu")
    assert np.isfinite(model.evaluate([5, 6, 7], 0)).all()
    model.close()


def test_a_missing_driver_is_one_line(inside, path, monkeypatch):
    """Without a driver, or with one too old, the error is one line, and the CPU still works."""
    cupy = pytest.importorskip("cupy")
    monkeypatch.setattr(current, "_instead", [])
    monkeypatch.setattr(current, "_first_gpu", gpu.Gpu)

    def none() -> int:
        raise cupy.cuda.runtime.CUDARuntimeError(35)

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceCount", none)
    arguments = ("run", path, "-p", "5", "-n", "1", "--device", "cuda")
    for version, words in ((0, "there is no NVIDIA driver"), (9020, "the driver is for CUDA 9, ")):
        monkeypatch.setattr(cupy.cuda.runtime, "driverGetVersion", lambda v=version: v)
        assert words in fault(inside(*arguments))
    code, *_ = inside(*arguments[:-2])
    assert code == 0


TOLD = "NVRM version: NVIDIA UNIX {}Kernel Module {} {}  Release Build\nGCC version: gcc 12.2.0\n"


@pytest.mark.parametrize(
    ("told", "version"),
    [
        (TOLD.format("x86_64 ", "", "550.54.15"), "550.54.15"),
        (TOLD.format("Open ", "for x86_64", "580.95"), "580.95"),
        ("", ""),
        (None, ""),
    ],
)
def test_certificates_bind_the_drivers_version(told, version, tmp_path, monkeypatch):
    """The driver's own version, if the system has it: releases for one CUDA version differ."""
    file = tmp_path / "version"
    if told is not None:
        file.write_text(told)
    monkeypatch.setattr(gpu, "DRIVER", file)
    assert gpu.driver() == version


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "tpu"}, "device is 'tpu': want cpu or cuda"),
        ({"gpu_layers": -2}, "gpu_layers must be at least -1, got -2"),
        ({"device": "cpu", "gpu_layers": 3}, "gpu_layers is 3, but the device is the CPU"),
        ({"device": "cpu", "n_cpu_moe": 2}, "n_cpu_moe is 2, but the device is the CPU"),
        ({"device": "cpu", "cpu_moe": True}, "cpu_moe is set, but the device is the CPU"),
        ({"n_cpu_moe": -1}, "n_cpu_moe must be at least 0, got -1"),
        ({"ram_budget": "1GiB"}, "device cuda and ram_budget exclude each other"),
        ({"passes": (observe,)}, "device cuda and passes exclude each other"),
        ({"vram_budget": 1, "gpu_layers": 2}, "vram_budget and gpu_layers exclude each other"),
        ({"vram_budget": 1, "keep_packed": True}, "vram_budget and keep_packed exclude"),
    ],
)
def test_invalid_options_are_named(options, message):
    """Impossible values and combinations are named."""
    with pytest.raises(ModelError, match=message):
        Options(**{"device": "cuda", **options})


@needs_compiler
def test_budgets_too_small_for_attention_are_refused(tmp_path):
    """Neurons are placed after attention, predictors and the cache, so these have to fit."""
    path = SMALL_MODELS["F32"].write(tmp_path / "sparse.gguf")
    with pytest.raises(ModelError, match=r"a vram_budget of 1e-05 GiB is too small for attention"):
        loaded(path, vram_budget=1e-5, disable_gpu_index=True)


@pytest.fixture(name="store")
def _store(tmp_path, monkeypatch):
    """An empty store of certificates."""
    store = Store(tmp_path / "certificates.jsonl")
    monkeypatch.setattr("engine.load.Store", lambda: store)
    return store


def certificate(kernel: CudaKernel, failure: str = "") -> Certificate:
    key = Key.of(kernel).digest
    when = "2026-01-01"
    return Certificate(kernel.name, key, "emulated", 9, 0.5, 1e-15, 0.1, when, failure)


RMS_NORM, ADD = (next(k for k in CUDA_KERNELS if k.op == op) for op in ("rms_norm", "add"))


@needs_compiler
def test_emulated_certificates_are_not_a_gpus(store):
    """Trials run in this process, at level emulated, and do not count for another device."""
    dispatcher, need = Dispatcher(store), KernelSpec("add")
    assert dispatcher.choose_on(Emulator(), [need]) == {need: ADD} | {
        KernelSpec(op): next(k for k in CUDA_KERNELS if k.op == op) for op in QUANTISING.values()
    }
    kept = store.get(ADD)
    assert (kept.level, kept.passed) == ("emulated", True)

    class Other(Emulator):
        identity = "NVIDIA H200/sm_90/driver-12090"

    with taking_the_place(Other()):
        assert store.get(ADD) is None


@needs_compiler
def test_rounding_is_tried_at_a_models_width(store, monkeypatch):
    """On a GPU, where sizes matter, rounding is tried at the model's own width."""
    asked = []

    def asks(requests, *_):
        asked.extend(requests)
        raise InterruptedError

    monkeypatch.setattr("kernels.dispatch.emulated", lambda _: False)
    monkeypatch.setattr("kernels.dispatch.certify", asks)
    need = KernelSpec("linear", "Q4_0", (("hidden", 4096), ("out", 64)))
    with taking_the_place(Emulator()), pytest.raises(InterruptedError):
        Dispatcher(store).choose_on(Emulator(), [need])
    shapes = {request.kernel: request.shapes for request in asked}
    assert shapes["quantise_activations/cuda/generic"] == ({"hidden": 4096},)


@needs_compiler
def test_a_failed_kernel_keeps_its_blocks_on_the_cpu(store, path):
    """Blocks that need it stay on the CPU, and notes say why; in strict mode loading fails."""
    store.add(certificate(k, "wrong" if k is RMS_NORM else "") for k in CUDA_KERNELS)
    model = loaded(path)
    where = {step.node.label: step.kernel.target for step in model.steps}
    assert {t for label, t in where.items() if label.startswith("blk.")} == {"cpu"}
    assert (where["token_embd"], where["output_norm"]) == ("cuda", "cpu")
    assert model.notes == [
        "rms_norm/cuda/generic failed its trial and is not used: wrong",
        "the output stays on the CPU: no CUDA kernel for rms_norm",
        "3 of 3 blocks stay on the CPU: no CUDA kernel for rms_norm",
    ]
    model.close()
    with pytest.raises(UncertifiedError, match="rms_norm/cuda/generic failed its trial"):
        loaded(path, strict=True)


def test_kernels_need_their_compute_capability():
    """Kernels that need a higher compute capability are not candidates."""

    class Old(Emulator):
        capability = 75

    need = KernelSpec("linear", "F16", (("hidden", 64), ("out", 64)))
    new = {k.variant for k in need.candidates_on(Emulator(), numerics="fast")}
    old = {k.variant for k in need.candidates_on(Old(), numerics="fast")}
    assert new - old == {"bf16", "tensor"}
    assert "bf16" not in {k.variant for k in need.candidates_on(Emulator())}
