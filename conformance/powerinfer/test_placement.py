"""Neuron placement: order, files next to the model, and errors."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.models import torch_archive
from conformance.support.models.small_models import Small, written
from conformance.support.models.sparse_files import Sparse
from conformance.support.program import fault
from conformance.support.refusals import refusal
from engine.atomic_write import OutputError
from engine.gguf.file import GGUFError, GGUFFile
from engine.gguf.writer import NewTensor, i32, text, u32, u64, write_gguf
from engine.placement import (
    Activations,
    Found,
    Placement,
    PlacementError,
    Speeds,
    StatisticsError,
    budget_bytes,
    find,
    gpu_index,
    place,
    statistics,
)
from engine.placement import budget as budgets
from engine.placement.budget import GIB, parts
from engine.placement.gpu_index import GpuIndex, GpuIndexError, path_of

FREE_SYNC = Speeds(synchronisation=0)
SPARSE = Sparse()
NEURON = 3 * 2 * SPARSE.hidden


@pytest.fixture
def model(tmp_path):
    return SPARSE.write(tmp_path / "small.gguf")


def dense_bytes(model: Path) -> int:
    with GGUFFile(model) as file:
        sizes = parts(file)
        return sum(sizes.dense.values()) + sum(sizes.cache.values())


def placed(model: Path, budget: int, activations: Activations | None, **options: bool) -> Found:
    with GGUFFile(model) as file:
        return find(file, activations, budget, speeds=FREE_SYNC, **options)


def test_neurons_are_placed_in_order_of_activity(model):
    """They are placed by level, then block, as in upstream's queue, up to the budget."""
    per_block = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")
    wanted = [f"blk.{i}.{name}.weight" for i in range(3) for name in per_block]
    wanted += [f"blk.{i}.{name}.weight" for i in range(3) for name in ("fc1", "fc2")]
    wanted += [f"blk.{i}.ffn_norm.weight" for i in range(3)]
    wanted += ["output_norm.weight", "output.weight"]
    with GGUFFile(model) as file:
        sizes = parts(file)
        assert list(sizes.dense) == wanted
        assert sizes.dense == {name: file.tensors[name].n_bytes for name in wanted}
        # 16 tokens, 3 blocks, 32 elements of two bytes
        assert sizes.cache == {"K": 16 * 3 * 64, "V": 16 * 3 * 64}
        assert parts(file, 5, "Q8_0").cache["K"] == 5 * 3 * 34
        assert (sizes.ffn, sizes.neuron) == ((600,) * 3, (NEURON,) * 3)
        whole, kv = sum(sizes.dense.values()), sizes.cache["K"]
        for budget, dense, cache, neurons in (
            (0, [], "", 0),
            (sizes.dense[wanted[0]], wanted[:1], "", 0),
            (whole - 1, wanted[:-1], "", 0),
            (whole, wanted, "", 0),
            (whole + kv - 1, wanted, "", kv - 1),
            (whole + 2 * kv - 1, wanted, "K", kv - 1),
            (whole + 2 * kv + 7, wanted, "KV", 7),
        ):
            space = budgets.room(sizes, budget)
            assert (list(space.dense), "".join(space.cache), space.neurons) == (
                dense, cache, neurons
            )  # fmt: skip


@pytest.mark.parametrize(
    ("sparse", "neuron"),
    [
        (replace(SPARSE, gated=False), 2 * 64),
        (replace(SPARSE, rows=(("Q4_0", "Q4_0", "Q8_0"),)), 18 + 18 + 34),
        (replace(SPARSE, rows=(("F32", "F16", "Q8_0"),), tied=True), 128 + 64 + 34),
    ],
)
def test_size_of_a_neuron(tmp_path, sparse, neuron):
    """A row of each existing matrix, in its own format; tied embeddings are copied."""
    with GGUFFile(sparse.write(tmp_path / "m.gguf")) as file:
        sizes = parts(file)
    assert sizes.neuron == (neuron,) * 3
    assert ("token_embd.weight" in sizes.dense) == sparse.tied


def test_a_budget_below_the_dense_part(model):
    """No neuron is placed, and a line says how much is missing."""
    with GGUFFile(model) as file:
        whole = sum(parts(file).dense.values())
        placement = place(file, SPARSE.activations(), whole - 100)
    assert not any(idx.any() for idx in placement.gpu_idx)
    assert "output.weight" not in placement.dense
    (note,) = placement.notes
    assert f"takes {whole:,} bytes, 100 more than the budget; output.weight and all" in note


@given(st.integers(0, 10**6), st.sampled_from([0.0, 1e-9, 1e-6, 1.0]), st.integers(0, 3))
def test_placements_fit(tmp_path_factory, budget, synchronisation, seed):
    """The GPU's neurons fit the budget and are each block's most active; no larger budget gains
    less if splitting costs nothing."""
    path = tmp_path_factory.getbasetemp() / "fits.gguf"
    mixed = (("F16", "F16", "F16"), ("Q8_0", "Q8_0", "F16"))
    sparse = replace(SPARSE, rows=mixed, seed=seed)
    activations = sparse.activations()
    with GGUFFile(sparse.write(path)) as file:
        speeds = Speeds(synchronisation=synchronisation)
        placement = place(file, activations, budget, speeds=speeds)
        more = place(file, activations, budget + 60_000, speeds=speeds)
        sizes = parts(file)
    others = sum(sizes.dense[n] for n in placement.dense)
    others += sum(sizes.cache[n] for n in placement.cache)
    assert others + placement.needed <= budget
    assert placement.needed <= placement.capacity
    for counts, idx, bucket in zip(
        activations.counts, placement.gpu_idx, placement.buckets, strict=True
    ):
        assert idx.dtype == bucket.dtype == np.int32
        assert np.array_equal(np.flatnonzero(idx), bucket)
        assert counts[idx == 1].min(initial=10**9) >= counts[idx == 0].max(initial=0)
    if synchronisation == 0 and more.cache == placement.cache:
        assert bytes_saved(more, activations) >= bytes_saved(placement, activations)
    if synchronisation == 1:  # a second a layer: none is split
        assert all(idx.all() or not idx.any() for idx in placement.gpu_idx)


def bytes_saved(placement: Placement, activations: Activations) -> int:
    """Bytes that the GPU reads instead of the CPU, over all tokens."""
    rows = zip(placement.gpu_idx, activations.counts, placement.neuron, strict=True)
    return sum(int((idx * counts).sum()) * size for idx, counts, size in rows)


def test_everything_fits(model):
    """No layer is split and there is no cost; a note says what was assumed."""
    unknown = replace(SPARSE.activations(), tokens=0)
    with GGUFFile(model) as file:
        placement = place(file, unknown, GIB, speeds=Speeds(synchronisation=9.0))
    assert all(idx.all() for idx in placement.gpu_idx)
    assert placement.covered(unknown) == (1, 1, 1)
    most = max(int(counts.max()) for counts in unknown.counts)
    assert placement.notes == (
        f"of how many tokens the statistics are is not known: {most:,} are assumed",
    )


@pytest.mark.parametrize(
    ("activations", "words"),
    [
        (Sparse(blocks=2).activations(), "have 2 blocks, .* has 3"),
        (Sparse(ffn=500).activations(), "block 0 has 500 neurons there, 600 in"),
        (SPARSE.activations(model="f00"), "its norms are not those of"),
    ],
)
def test_statistics_of_another_model(model, activations, words):
    with GGUFFile(model) as file:
        with pytest.raises(StatisticsError, match=f"statistics are of another model: .*{words}"):
            place(file, activations, GIB)
        place(file, SPARSE.activations(model=statistics.identity(file)), GIB)


def test_identity_is_of_the_norms(tmp_path):
    """Another format of the matrices is the same model, other norms are not."""

    def of(seed: int, format: str) -> str:
        path = tmp_path / "m.gguf"
        Small(seed=seed, format=format).write(path)
        with GGUFFile(path) as file:
            return statistics.identity(file)

    with_norms = of(0, "F32")
    assert of(1, "F32") != with_norms
    norms = {n: v for n, v in Small(seed=0).tensors()[1].items() if n.endswith("_norm.weight")}
    writer = gguf.GGUFWriter(tmp_path / "norms.gguf", "llama")
    for name, values in norms.items():
        writer.add_tensor(name, values)
    writer.add_tensor("blk.0.fc1.weight", np.zeros((2, 2), np.float16))
    with GGUFFile(written(writer, tmp_path / "norms.gguf")) as file:
        assert statistics.identity(file) == with_norms


@pytest.mark.parametrize(
    ("without", "words"),
    [
        ("blk.1.ffn_down_t.weight", "there is no tensor blk.1.ffn_down_t.weight: only sparse"),
        ("blk.0.ffn_up.weight", "there is no tensor blk.0.ffn_up.weight"),
        ("blk.2.attn_v.weight", "there is no tensor blk.2.attn_v.weight"),
    ],
)
def test_dense_models_are_refused(tmp_path, without, words):
    with (
        GGUFFile(SPARSE.write(tmp_path / "m.gguf", without)) as file,
        pytest.raises(PlacementError, match=words),
    ):
        place(file, SPARSE.activations(), GIB)


def test_shapes_and_numbers_refused(tmp_path, model):
    path = tmp_path / "odd.gguf"
    tensors = [replace(t, dims=(599, 32)) if "1.ffn_up" in t.name else t for t in SPARSE.tensors()]
    write_gguf(path, {}, tensors, (np.zeros(t.n_bytes, np.uint8) for t in tensors), magic="PWRI")
    with GGUFFile(path) as file, pytest.raises(PlacementError, match="have other shapes"):
        parts(file)
    with GGUFFile(model) as file:
        for context, kv_format, words in (
            (-1, "F16", "a context is a number"),
            (9, "Q9", "a cache is of F32, F16, Q8_0, Q4_0, not 'Q9'"),
        ):
            with pytest.raises(PlacementError, match=words):
                parts(file, context, kv_format)
    for budget in (-2.0, float("nan"), float("inf")):
        with pytest.raises(PlacementError, match="a budget is -1, for what is free, or GiB from"):
            budget_bytes(budget)
    for speeds in ((1e9, 1e9, 0.0), (1e9, 2e9, -1.0), (float("nan"), 1e12, 0.0)):
        with pytest.raises(PlacementError, match="a GPU has to read faster"):
            Speeds(*speeds)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [("1000\n24000\n", 744 << 20), ("100\n", 0), ("[N/A]\n", None), ("", None), (None, None)],
)
def test_default_budget_is_the_gpus_free_memory(tmp_path, monkeypatch, said, wanted):
    """The first GPU's free memory minus 256 MiB; without one, a budget is required."""
    monkeypatch.setenv("PATH", f"{tmp_path}")
    if said is not None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\nprintf '{said}'\n".replace("\n'", "\\n'"))
        program.chmod(0o755)
    if wanted is None:
        with pytest.raises(PlacementError, match=r"there is no GPU .*: name one"):
            budget_bytes(-1)
    else:
        assert budget_bytes(-1) == wanted


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=12),
    st.integers(0, 2**63),
)
def test_index_round_trip(tmp_path_factory, blocks, capacity):
    """The index is as PowerInfer's loader expects: pairs of tensors in the blocks' order."""
    path = tmp_path_factory.getbasetemp() / "m.gguf.generated.gpuidx"
    gpu_idx = tuple(np.array(block, np.int32) for block in blocks)
    gpu_index.write(path, GpuIndex(gpu_idx, capacity, {"model": "abc"}))
    found = gpu_index.read(path)
    assert all(map(np.array_equal, found.gpu_idx, gpu_idx))
    assert (len(found.gpu_idx), found.capacity) == (len(blocks), capacity)
    assert found.made_of == {"model": "abc"}
    assert path.read_bytes()[:8] == b"PWRI\3\0\0\0"
    with GGUFFile(path) as file:
        assert file.metadata["general.architecture"] == "generic.gpu_index"
        assert file.metadata["generic.gpu_index.block_count"] == len(blocks)
        assert file.value_types["split.vram_capacity"].kind == gguf.GGUFValueType.UINT64
        for i, tensor in enumerate(file.tensors.values()):
            name = ("gpu_idx", "gpu_bucket")[i % 2]
            assert (tensor.name, tensor.type_name) == (f"blk.{i // 2}.{name}", "I32")


def written_by_powerinfer(path: Path, gpu_idx: list[np.ndarray], capacity: int) -> None:
    """As PowerInfer's exporter writes it: by the gguf package, with another magic."""
    writer = gguf.GGUFWriter(path, "generic.gpu_index")
    for i, idx in enumerate(gpu_idx):
        writer.add_tensor(f"blk.{i}.gpu_idx", idx.astype(np.int32))
        writer.add_tensor(f"blk.{i}.gpu_bucket", np.flatnonzero(idx).astype(np.int32))
    writer.add_block_count(len(gpu_idx))
    writer.add_uint64("split.vram_capacity", capacity)
    written(writer, path)
    with path.open("r+b") as file:
        file.write(b"PWRI" + (3).to_bytes(4, "little"))


def test_placements_are_stored_and_reused(model):
    budget, activations = dense_bytes(model) + 700 * NEURON, SPARSE.activations()
    first = placed(model, budget, activations)
    assert (first.state, first.path.name) == ("written", "small.gguf.generated.gpuidx")
    assert first.placement.needed == 2 * 256 * NEURON
    stored = first.path.read_bytes()
    again = placed(model, budget, activations)
    assert again.state == placed(model, budget, None).state == "reused"
    assert all(map(np.array_equal, again.placement.gpu_idx, first.placement.gpu_idx))
    assert again.placement.notes == ()
    os.utime(first.path, ns=(1, 1))
    assert placed(model, budget, activations, reset=True).state == "written"
    assert first.path.read_bytes() == stored
    assert first.path.stat().st_mtime_ns != 1


def test_no_neuron_on_the_gpu(model):
    """No neuron on the GPU, whatever is stored, and nothing is read, written or required."""
    path_of(model).write_bytes(b"nonsense")
    found = placed(model, GIB, None, disable=True)
    assert found.state == "ignored"
    assert found.placement.dense
    assert not any(idx.any() for idx in found.placement.gpu_idx)
    assert path_of(model).read_bytes() == b"nonsense"


@pytest.mark.parametrize("what", ["model", "statistics", "budget", "cache", "solver", "norms"])
def test_placements_are_recomputed_after_changes(model, what):
    """One line says what changed."""
    budget, activations = dense_bytes(model) + 700 * NEURON, SPARSE.activations()
    placed(model, budget, activations)
    context, speeds = 0, FREE_SYNC
    if what == "model":  # another header
        replace(SPARSE, context=15, kv=64).write(model)
        context = 8  # with as large a cache
    elif what == "norms":  # other weights
        replace(SPARSE, seed=1).write(model)
    elif what == "statistics":
        activations = replace(activations, counts=activations.counts[::-1])
    elif what == "budget":
        budget += 1
    elif what == "cache":
        context = 15
    else:
        speeds = Speeds(synchronisation=1e-9)
    with GGUFFile(model) as file:
        found = find(file, activations, budget, context=context, speeds=speeds)
        changed = "model" if what == "norms" else what
        assert found.state == "written"
        note = f"{found.path}: not used: {changed} has changed"
        assert found.placement.notes[0] == note
        assert find(file, activations, budget, context=context, speeds=speeds).state == "reused"


def test_powerinfers_index_is_used(model):
    """PowerInfer's own index is checked by its shape, its budget, and its real memory."""
    path, rng = path_of(model), np.random.default_rng(0)
    gpu_idx = [rng.integers(0, 2, 600) for _ in range(2)] + [np.zeros(600, int)]
    many = sum(int(idx.sum()) for idx in gpu_idx)
    budget, room = dense_bytes(model) + many * NEURON, many * NEURON
    written_by_powerinfer(path, gpu_idx, room)
    for activations in (None, SPARSE.activations()):
        found = placed(model, budget, activations)
        assert found.state == "reused"
        assert all(map(np.array_equal, found.placement.gpu_idx, gpu_idx))
    for other, capacity, words in (
        (gpu_idx, room + 1, f"it needs {room + 1:,} bytes for neurons, {room:,} are left"),
        ([*gpu_idx[:2], np.eye(1, 600)[0]], 0, f"it needs {room + NEURON:,} bytes for neurons"),
        (gpu_idx[:2], 0, "it is of other blocks, or neurons, than the model has"),
        ([idx[:500] for idx in gpu_idx], 0, "it is of other blocks, or neurons"),
    ):
        written_by_powerinfer(path, other, capacity)
        with pytest.raises(PlacementError, match=f"not used: {words}.*; to make one, name stat"):
            placed(model, budget, None)
        found = placed(model, budget, SPARSE.activations())
        assert found.state == "written"
        assert words in found.placement.notes[0]


def index_of(*tensors: tuple[str, str, list[float]], **keys: object) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        dtypes = {"I32": np.int32, "F32": np.float32}
        arrays = [np.array(values, dtypes[kind]) for _, kind, values in tensors]
        infos = [
            NewTensor(f"blk.{name}", kind, array.shape)
            for (name, kind, _), array in zip(tensors, arrays, strict=True)
        ]
        own = {key.replace("__", "."): value for key, value in keys.items()}
        have = {"general.architecture": text("generic.gpu_index"), "split.vram_capacity": u64(9)}
        data = (array.reshape(-1).view(np.uint8) for array in arrays if array.size)
        write_gguf(path, {**have, **own}, infos, data, magic="PWRI")

    return make


IDX, BUCKET = ("0.gpu_idx", "I32", [0.0, 1, 1]), ("0.gpu_bucket", "I32", [1.0, 2])
WRONG_INDEX = {
    "text": (lambda path: path.write_text("index"), "this is not a GGUF file"),
    "a model": (lambda path: SPARSE.write(path), "this is no index of neurons"),
    "capacity": (index_of(IDX, BUCKET, split__vram_capacity=i32(-1)), "is no number of bytes"),
    "blocks": (index_of(IDX, BUCKET, generic__gpu_index__block_count=u32(2)), "count is not 1"),
    "order": (index_of(BUCKET, IDX), "the tensors are not gpu_idx and gpu_bucket of each"),
    "no bucket": (index_of(IDX), "the tensors are not gpu_idx and gpu_bucket"),
    "floats": (index_of(("0.gpu_idx", "F32", [0, 1, 1]), BUCKET), "gpu_idx is not I32 of one"),
    "matrix": (index_of(("0.gpu_idx", "I32", [[0, 1]]), BUCKET), "gpu_idx is not I32 of one"),
    "values": (index_of(("0.gpu_idx", "I32", [0, 2, 1]), BUCKET), "is neither 0 nor 1"),
    "bucket": (index_of(IDX, ("0.gpu_bucket", "I32", [2, 1])), "does not list the ones"),
    "beyond": (index_of(IDX, ("0.gpu_bucket", "I32", [1, 2, 9])), "does not list the ones"),
    "short": (index_of(IDX, ("0.gpu_bucket", "I32", [1])), "does not list the ones"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "words"), WRONG_INDEX.values(), ids=WRONG_INDEX.keys())
def test_invalid_index_files_are_recomputed(model, make, words):
    """The reader refuses them, and a line says why they are made anew."""
    path = path_of(model)
    make(path)
    assert re.search(words, refusal((GpuIndexError, GGUFError), path, gpu_index.read, path))
    found = placed(model, GIB, SPARSE.activations())
    assert found.state == "written"
    assert found.placement.notes[0].startswith(f"{path}: not used: ")
    assert words in found.placement.notes[0]
    assert placed(model, GIB, SPARSE.activations()).state == "reused"


def test_the_command_prints_a_table_or_json(inside, model):
    """A table and the file's name, or JSON; a second run uses what the first one kept."""
    folder = model.parent / "counts.npz"
    statistics.write(folder, SPARSE.activations())
    gib = (dense_bytes(model) + 700 * NEURON) / GIB
    arguments = ["place", model, "--activation", folder, "--vram-budget", str(gib)]
    arguments += ["--sync-cost", "0"]
    code, stdout, stderr = inside(*arguments)
    assert (code, stderr) == (0, "")
    assert stdout.endswith(f"{path_of(model)}: written\n")
    assert "512 of 1,800 neurons on the GPU" in stdout
    code, stdout, _ = inside(*arguments, "--json")
    said = json.loads(stdout)
    assert (code, said["state"], said["file"]) == (0, "reused", str(path_of(model)))
    assert sum(row["on_gpu"] for row in said["blocks"]) == 512
    assert said["needed_bytes"] == 512 * NEURON
    assert said["cache"] == ["K", "V"]
    code, stdout, stderr = inside(*arguments[:-4], "--vram-budget", "0.00001", "--reset-gpu-index")
    assert (code, stderr.count("\n")) == (0, 1)
    assert "note: no neuron is on the GPU" in stderr
    assert "0 of 1,800 neurons on the GPU" in stdout
    code, stdout, _ = inside("place", model, "--vram-budget", "1", "--disable-gpu-index", "--json")
    assert (code, json.loads(stdout)["state"]) == (0, "ignored")


def test_the_command_finds_powerinfers_folder(inside, model):
    folder = model.parent / "activation"
    folder.mkdir()
    for i, counts in enumerate(SPARSE.activations().counts):
        torch_archive.save(counts, folder / f"activation_{i}.pt")
    code, stdout, stderr = inside("place", model, "--vram-budget", "1", "--json")
    assert (code, json.loads(stdout)["state"]) == (0, "written")
    assert "of how many tokens the statistics are is not known" in stderr


def test_the_command_refuses_bad_input(inside, tmp_path, model, monkeypatch):
    """One line says what is missing, or what could not be stored."""
    no_index = fault(inside("place", model, "--vram-budget", "1"))
    assert "there is no index; to make one, name statistics" in no_index
    monkeypatch.setattr(budgets, "QUERY", ("no such program",))
    assert "there is no GPU" in fault(inside("place", model))
    counts = tmp_path / "counts.npz"
    statistics.write(counts, SPARSE.activations())
    path_of(model).mkdir()
    code, _, stderr = inside("place", model, "--activation", counts, "--vram-budget", "1")
    assert code == 1
    assert "not kept: " in stderr
    assert stderr.endswith(f"assay: {path_of(model)}: the placement could not be kept\n")
    assert not list(model.parent.glob("*.part"))
    with pytest.raises(OutputError):
        gpu_index.write(path_of(model), GpuIndex((), 0, {}))
