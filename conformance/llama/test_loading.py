"""Loading: no weight is in memory twice, and packed weights on disk are used only if they match."""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from conformance.support.child import output_of, started
from conformance.support.files.full_disk import full_after
from conformance.support.models.small_models import Small, Tensors
from conformance.support.program import printed
from engine.compile import packed_weights
from engine.compile.packed_weights import Kept, Packed, Places, pack
from engine.compile.plan import packed_name
from engine.gguf.file import GGUFFile
from engine.model import Model
from engine.options import Fields, Options, Progress
from kernels.cache import cache_folder
from kernels.cpu.formats.packing import LUT_AVX2_PACKINGS, PACKINGS
from kernels.cpu.runtime.closures import identity
from kernels.cpu.runtime.team import Team
from kernels.table import KERNELS, find
from reference.formats import FORMATS
from reference.models.transformer import Weight

MB = 10**6
PROMPT = [1, 5, 9, 2, 33]

# Loads two models, one after the other, and prints how far the second one raised the most memory
# that there was, a step included, and its cache's size.
PEAKS = """
import json, sys
from pathlib import Path
from engine.model import Model
from engine.options import Options

def peak(path):
    model = Model(path, Options(threads=2, context=256))
    model.evaluate([1, 2, 3], 0)
    status = Path("/proc/self/status").read_text()
    cache = sum(cache.nbytes for cache in model.caches.values())
    model.close()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024, cache

(before, _), (most, cache) = map(peak, sys.argv[1:])
print(json.dumps([most - before, cache]))
"""

# Loads a model and prints its logits and notes.
LOGITS = """
import json, sys
from engine.model import Model
from engine.options import Options

model = Model(sys.argv[1], Options(threads=1, context=64, keep_packed=True))
notes = [note for note in model.notes if "packed" in note]
print(json.dumps([model.evaluate([1, 5, 9, 2, 33], 0).tobytes().hex(), notes]))
"""


class Zeros(Small):
    """The same tensors filled with zeros, which are quick to create."""

    def tensors(self) -> Tensors:
        row_bytes = FORMATS[self.format].row_bytes
        dims = {name: dims for name, *dims in self.listed()}
        matrices = {
            name: Weight(np.zeros((d[0], row_bytes(d[1])), np.uint8), self.format)
            for name, d in dims.items()
            if len(d) == 2
        }
        return matrices, {name: np.zeros(d, np.float32) for name, d in dims.items() if len(d) == 1}


LARGE = {
    "many tensors": Zeros(blocks=6, hidden=2048, ffn=8192, tied=True, format="Q8_0"),
    "one tensor": Zeros(blocks=1, hidden=8192, vocab=32_000, tied=True, format="Q8_0"),
}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells the peak")
@pytest.mark.parametrize("large", LARGE.values(), ids=LARGE.keys())
def test_no_weight_is_in_memory_twice(large, tmp_path):
    """The file, the cache and 100 MB are enough for whoever had a small model before."""
    small = Zeros(tied=True, format="Q8_0").write(tmp_path / "small.gguf")
    path = large.write(tmp_path / "large.gguf")
    try:
        size = path.stat().st_size
        grown, cache = json.loads(output_of(PEAKS, small, path))
    finally:
        path.unlink()
    assert size > 250 * MB  # two copies would go far beyond the limit
    assert size / 2 < grown <= size + cache + 100 * MB


LAYOUTS = {
    f"{k.format} by {identity(k.pack.share.function)}": (k.format, k.pack)
    for k in KERNELS
    if k.pack and k.format
}


@pytest.mark.parametrize(("format", "packing"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_packing_in_pieces_gives_the_same_weight(format, packing, tmp_path, monkeypatch):
    small = Small(vocab=101, format=format, hidden=256, heads=16, ffn=256)
    path = small.write(tmp_path / "small.gguf")
    with GGUFFile(path) as file, Team(2) as team:
        weight = file.tensor("token_embd.weight")
        before = weight.tobytes()
        whole = packing(weight)
        steps: list[tuple[int, int]] = []
        monkeypatch.setattr(packed_weights, "PIECE", 2 * packing.lanes * weight.shape[1])
        jobs = {"packed": Packed("token_embd.weight", packing)}
        pieces = pack(jobs, file, Places(jobs, file), team, lambda *step: steps.append(step))
        assert pieces["packed"].tobytes() == whole.tobytes()
        assert [done for done, _ in steps] == [
            min(rows, 101) * weight.shape[1]
            for rows in range(2 * packing.lanes, 101 + 2 * packing.lanes, 2 * packing.lanes)
        ]
        assert {total for _, total in steps} == {len(before)}
        assert weight.tobytes() == before  # its pages came back from the file


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A small model, whose kernels are certified from now on."""
    path = Small(format="Q8_0").write(tmp_path_factory.mktemp("loading") / "small.gguf")
    Model(path, Options(threads=1)).close()
    return path.read_bytes()


@pytest.fixture
def path(original, tmp_path, monkeypatch):
    """The model, and a cache folder of the test's own, with the certificates of the usual one."""
    usual, own = cache_folder().absolute(), tmp_path / "cache"
    own.mkdir()
    for name in ("certificates.jsonl", "compiled"):
        (own / name).symlink_to(usual / name)
    monkeypatch.setenv("ASSAY_CACHE", str(own))
    path = tmp_path / "small.gguf"
    path.write_bytes(original)
    return path


@pytest.fixture
def folder(path):
    return path.parent / "cache" / "packed"


class Loaded:
    """The result of a load: logits, whether weights were packed, and the notes."""

    def __init__(self, path: Path, **options: Any) -> None:
        steps: list[tuple[int, int]] = []
        progress = Progress(packed=lambda *step: steps.append(step))
        model = Model(path, Options(threads=1, context=64, progress=progress, **options))
        self.logits = model.evaluate(PROMPT, 0).tobytes()
        self.notes = [note for note in model.notes if "packed" in note]  # none of kernels
        weights = [a for name, a in model.plan.inputs.items() if "@" in name]
        self.packed = len(steps) > 1
        assert weights
        assert steps[-1][0] == steps[-1][1]
        assert {array.flags.writeable for array in weights} == {self.packed}
        model.close()


def test_packed_weights_are_stored_only_on_request(path, folder):
    assert Loaded(path).packed
    assert not folder.exists()


def test_the_second_load_maps_the_file(path, folder):
    plain, first, second = Loaded(path), *(Loaded(path, keep_packed=True) for _ in range(2))
    assert (first.packed, second.packed) == (True, False)
    assert plain.logits == first.logits == second.logits
    assert first.notes == second.notes == []
    (kept,) = folder.iterdir()
    assert kept.stat().st_size > sum(a.nbytes for a in Small(format="Q8_0").tensors()[1].values())


CORRUPTIONS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: data[:0],
    "a byte short": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "a page lost": lambda data: data[4096:],
    "a byte more": lambda data: data + b"}",
    "another index": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "zeros": lambda data: bytes(len(data)),
    "foreign": lambda data: b"\x7fELF" + os.urandom(len(data) - 4),
}


@pytest.mark.parametrize("corruption", CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_damaged_file_is_replaced(corruption, path, folder):
    good = Loaded(path, keep_packed=True)
    (kept,) = folder.iterdir()
    data = kept.read_bytes()
    kept.unlink()  # writing to it would also change what is mapped
    kept.write_bytes(corruption(data))
    again = Loaded(path, keep_packed=True)
    assert again.packed
    assert again.logits == good.logits
    assert list(folder.iterdir()) == [kept]
    assert kept.read_bytes() == data
    assert not Loaded(path, keep_packed=True).packed


def test_a_changed_model_is_packed_anew(path, folder):
    """Even a model of the same size at the same path, with the same date, is packed anew."""
    old = Loaded(path, keep_packed=True)
    dates = path.stat()
    other = Small(format="Q8_0", seed=1).write(path.with_name("other.gguf")).read_bytes()
    assert len(other) == dates.st_size
    with path.open("r+b") as file:
        file.write(other)
    os.utime(path, ns=(dates.st_atime_ns, dates.st_mtime_ns))
    new = Loaded(path, keep_packed=True)
    assert new.packed
    assert new.logits == Loaded(path).logits != old.logits
    assert len(list(folder.iterdir())) == 1
    assert not Loaded(path, keep_packed=True).packed


def test_packed_files_are_per_model(path, folder):
    other = Small(format="Q8_0", seed=1).write(path.with_name("other.gguf"))
    logits = [Loaded(p, keep_packed=True).logits for p in (path, other)]
    again = [Loaded(p, keep_packed=True) for p in (path, other)]
    assert [load.packed for load in again] == [False, False]
    assert [load.logits for load in again] == logits
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize(
    ("format", "packings"),
    [
        ("Q8_0", [PACKINGS["Q8_0"], PACKINGS["F16"]]),
        ("Q4_0", [PACKINGS["Q4_0"], LUT_AVX2_PACKINGS["Q4_0"]]),
    ],
    ids=["of formats", "of variants"],
)
def test_other_layouts_are_not_used(format, packings, tmp_path, folder):
    """Not even a layout that packs the same tensor into as many bytes is used."""
    path = Small(format=format).write(tmp_path / "small.gguf")
    with GGUFFile(path) as file, Team(1) as team:
        kinds = [{"packed": Packed("output.weight", packing)} for packing in packings]
        keeps = [Kept(jobs, file, Places(jobs, file)) for jobs in kinds]
        for kept, jobs, found in zip(keeps, kinds, ([False, True], [True, False]), strict=True):
            weights = pack(jobs, file, kept.places, team)
            assert kept.save((name, 0, weight) for name, weight in weights.items()) == ""
            assert [kept.load() is None for kept in keeps] == found


def test_packed_files_are_named_after_the_layout():
    """Two kernels of a model never read each other's files."""
    kernels = [find(f"linear/cpu/{variant}/Q4_0") for variant in ("avx2", "lut_avx2", "lut_avx512")]
    assert len({packed_name("output.weight", kernel) for kernel in kernels}) == 3


def test_concurrent_processes_do_not_clash(path, folder):
    logits = Loaded(path).logits.hex()
    with ExitStack() as stack:
        command = sys.executable, "-c", LOGITS, path
        processes = [stack.enter_context(started(*command)) for _ in range(4)]
        answers = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    assert answers == [[logits, []]] * 4
    assert not any(process.returncode for process in processes)
    assert [kept.suffix for kept in folder.iterdir()] == [".packed"]
    kept = Loaded(path, keep_packed=True)
    assert not kept.packed
    assert kept.logits.hex() == logits


def test_folder_that_cannot_be_written_is_a_note(path, folder):
    folder.write_text("not a folder")
    load = Loaded(path, keep_packed=True)
    assert load.logits == Loaded(path).logits
    assert load.notes == [f"packed weights cannot be kept in {folder}: File exists"]


def test_full_disk_is_a_note(path, folder, monkeypatch):
    """Files are limited to 64 KB, less than the weights: the partial file is removed."""
    save = Kept.save

    def limited(*arguments: Any) -> str:
        with full_after(2**16):
            return save(*arguments)

    monkeypatch.setattr(Kept, "save", limited)
    load = Loaded(path, keep_packed=True)
    assert load.logits == Loaded(path).logits
    assert load.notes == [f"packed weights cannot be kept in {folder}: File too large"]
    assert list(folder.iterdir()) == []


def test_files_left_by_a_killed_load_are_removed(path, folder):
    folder.mkdir()
    for name, age in (("old.part", 7200), ("new.part", 60)):
        (folder / name).write_bytes(b"half a weight")
        os.utime(folder / name, (time.time() - age,) * 2)
    Loaded(path, keep_packed=True)
    assert {left.suffix for left in folder.iterdir()} == {".part", ".packed"}
    assert not (folder / "old.part").exists()


def test_the_program_stores_packed_weights(inside, spelling, path, folder):
    path.write_bytes(spelling.read_bytes())
    printed(inside("run", path, "-p", "a", "-n", 1, "-t", 1, "--keep-packed"))
    assert len(list(folder.iterdir())) == 1


def test_load_keywords_equal_the_fields_of_options():
    """The keywords of `Engine.load` have the types of Options' fields."""
    assert get_type_hints(Fields) == get_type_hints(Options)
