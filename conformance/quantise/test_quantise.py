"""`assay quantize`: formats as in llama.cpp, bytes as the formats define them, and bad input."""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from conformance.llama.peers import goldens
from conformance.llama.peers.skeletons import SKELETONS, formats_by_role
from conformance.support.child import python, started
from conformance.support.files.changing import changing
from conformance.support.files.full_disk import full_after
from conformance.support.models.small_families import SmallGemma4, joined_experts
from conformance.support.models.small_models import Small, written
from conformance.support.models.sparse_files import SMALL_MODELS
from conformance.support.models.steps import loaded
from conformance.support.program import PROGRAM, complaints, fault, printed
from engine.atomic_write import OutputError
from engine.gguf.file import GGUFError, GGUFFile
from engine.quantise import QuantiseError, Recipe, choices, quantise
from engine.quantise.importance import Importance
from engine.quantise.quantise import PIECE
from reference.formats import FORMATS
from reference.op import Array

# rows of 256 and, of what leads out of the FFN, of 288
SMALL = Small(hidden=256, heads=4, head_dim=64, ffn=288)
MODULE = sys.modules[quantise.__module__]
ANSWERS = goldens.read_json("mixes")


def made(source: Path, out: Path, type_: str, threads: int = 1, **recipe: Any) -> dict[str, Array]:
    """The bytes of a quantised file's tensors."""
    with GGUFFile(source) as file:
        quantise(file, out, Recipe(type_, **recipe), threads=threads)
    return stored(out)


def stored(path: Path) -> dict[str, Array]:
    with GGUFFile(path) as file:
        return {name: file.tensor(name).copy() for name in file.tensors}


def formats(path: Path, type_: str, **recipe: Any) -> dict[str, str]:
    """What tensors become."""
    with GGUFFile(path) as file:
        return {c.tensor.name: c.format for c in choices(file, Recipe(type_, **recipe))}


def importance() -> Importance:
    """For the small model's matrices, except the embedding and the output."""
    rng = np.random.default_rng(5)
    columns = {
        name: rng.random(288 if "ffn_down" in name else 256, np.float32) ** 4
        for name in SMALL.tensors()[0]
        if name.startswith("blk.")
    }
    return Importance(columns, "small.imatrix", ("a.txt",), 3)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return SMALL.write(tmp_path_factory.mktemp("quantise") / "small.gguf")


@pytest.mark.parametrize("name", SKELETONS)
def test_mixes_equal_llama_cpps(tmp_path, name):
    """Every mix that both support gives every matrix llama.cpp's format: for deep and shallow
    models, with and without GQA, tied or not, with 4, 5 and 8 experts, and rows that no block
    divides."""
    skeleton = SKELETONS[name]
    matters = Importance(skeleton.importance(), "all alike")
    with GGUFFile(skeleton.write(tmp_path / "in.gguf")) as file:
        for mix, answers in ANSWERS[name].items():
            for answer, weighed in zip((answers * 2)[:2], (None, matters), strict=True):
                plan = choices(file, Recipe(mix, importance=weighed))
                ours = formats_by_role(skeleton, {c.tensor.name: c.format for c in plan})
                assert answer in (None, ours), (mix, weighed)


def test_per_layer_embeddings(tmp_path):
    """They have the embedding's format, and their projection stays, as in llama.cpp."""
    found = formats(SmallGemma4(per_layer=128).write(tmp_path / "in.gguf"), "Q4_K_M")
    assert (found["per_layer_token_embd.weight"], found["blk.0.proj.weight"]) == ("Q6_K", "Q5_0")
    assert found["per_layer_model_proj.weight"] == "F32"


def test_experts_beside_a_dense_network(tmp_path):
    """Gemma 4's have the mix's formats, like the dense network; routers and scales stay."""
    small = joined_experts(SmallGemma4(hidden=256, ffn=256, width=256, experts=5, format="F16"))
    found = formats(small.write(tmp_path / "in.gguf"), "Q4_K_M")
    pairs = {"gate_up": ("up", "Q4_K"), "down": ("down", "Q6_K")}
    for role, (alike, wanted) in pairs.items():
        names = (f"blk.5.ffn_{role}_exps.weight", f"blk.5.ffn_{alike}.weight")
        assert [found[name] for name in names] == [wanted] * 2
    stay = ("gate_inp.weight", "gate_inp.scale", "down_exps.scale")
    assert {found[f"blk.0.ffn_{name}"] for name in stay} == {"F32"}


def test_goldens_cover_every_mix():
    """All mixes were tried with llama.cpp, and it refused few."""
    assert set(ANSWERS) == set(SKELETONS), goldens.MAKE
    for name, answers in ANSWERS.items():
        assert set(answers) == set(SKELETONS[name].mixes), goldens.MAKE
        assert [mix for mix, (plain, *_) in answers.items() if plain is None] in ([], ["Q2_K_S"])
        assert all(answer[-1] for answer in answers.values())


def test_overrides(small):
    """The first matching pattern counts, anywhere in a name; then the options for the output and
    the embedding, then the mix; norms never change."""
    found = formats(
        small, "Q4_K_M", overrides=[(r"blk\.0\..*_q", "F16"), (r"attn|norm", "Q8_0")],
        output="Q5_1", embedding="Q4_1",
    )  # fmt: skip
    assert found["blk.0.attn_q.weight"] == "F16"
    assert {found[f"blk.{i}.attn_{r}.weight"] for i in (0, 1) for r in "kv"} == {"Q8_0"}
    assert found["blk.1.attn_q.weight"] == found["blk.1.attn_output.weight"] == "Q8_0"
    assert (found["output.weight"], found["token_embd.weight"]) == ("Q5_1", "Q4_1")
    assert found["blk.1.ffn_gate.weight"] == "Q4_K"
    assert found["blk.0.attn_norm.weight"] == found["output_norm.weight"] == "F32"


def test_pure(small):
    """One format for all matrices whose rows allow it, except for overrides."""
    found = formats(small, "Q4_K_M", pure=True, output="Q6_K")
    matrices = {name for name in found if not name.endswith("norm.weight")}
    others = {name: found[name] for name in matrices if found[name] != "Q4_K"}
    assert others == {
        "output.weight": "Q6_K", "blk.0.ffn_down.weight": "Q5_0", "blk.1.ffn_down.weight": "Q5_0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("recipe", "format"),
    [({}, "Q6_K"), ({"output": "Q8_0"}, "Q8_0"), ({"embedding": "Q4_0"}, "Q4_0"),
     ({"output": "Q8_0", "embedding": "Q4_0"}, "Q4_0"), ({"pure": True}, "Q4_K")],
)  # fmt: skip
def test_tied_embedding(tmp_path, recipe, format):
    """A tied embedding may be overridden under either name; otherwise it is an output."""
    path = SKELETONS["tied"].write(tmp_path / "tied.gguf")
    assert formats(path, "Q4_K_M", **recipe)["token_embd.weight"] == format


def test_unchanged_files_need_no_allow_requantize(tmp_path):
    """A file in which nothing would change is copied without --allow-requantize."""
    path = Small(format="Q8_0").write(tmp_path / "small.gguf")
    assert set(formats(path, "Q8_0").values()) == {"Q8_0", "F32"}
    with pytest.raises(QuantiseError, match=r"token_embd.weight' is Q8_0 already: --allow-req"):
        formats(path, "Q4_0")


@pytest.mark.parametrize(
    ("type_", "matrices", "predictors"),
    [("Q4_0", "Q4_0", "Q4_0"), ("Q8_0", "Q8_0", "Q5_0"), ("F16", "F16", "F16")],
)
def test_predictors_have_powerinfers_formats(type_, matrices, predictors, tmp_path):
    """Predictors are Q4_0 under Q4_0 and Q5_0 under other blocks; magic and threshold stay, and the
    file still runs sparse."""
    sparse = SMALL_MODELS["F32"]
    source, out = sparse.write(tmp_path / "f32.gguf"), tmp_path / "small.gguf"
    made(source, out, type_)
    with GGUFFile(source) as before, GGUFFile(out) as after:
        assert after.magic == "PWRI"
        key = "powerinfer.sparse_threshold"
        assert after.metadata[key] == before.metadata[key]
        found = {name: info.type_name for name, info in after.tensors.items()}
    for i in range(sparse.blocks):
        assert {found[f"blk.{i}.fc{n}.weight"] for n in (1, 2)} == {predictors}
        rows = ("ffn_gate", "ffn_up", "ffn_down_t")
        assert {found[f"blk.{i}.{name}.weight"] for name in rows} == {matrices}
    with loaded(out, context=32, sparse="on") as model:
        assert np.isfinite(model.evaluate([3, 4, 5], 0)).all()


@pytest.mark.parametrize("source", ["F32", "F16", "BF16", "Q8_0"])
def test_tensors_are_quantised_by_their_formats(tmp_path, source):
    """Each is its format's quantisation of the source's numbers, and others are copied."""
    path = Small(hidden=256, heads=4, head_dim=64, ffn=288, blocks=1, format=source).write(
        tmp_path / "in.gguf"
    )
    new = made(path, tmp_path / "out.gguf", "Q4_K_M", requantise=True)
    wanted = formats(path, "Q4_K_M", requantise=True)
    assert {"Q4_K", "Q6_K", "F32"} < set(wanted.values())
    for name, old in stored(path).items():
        if wanted[name] == "F32":
            assert np.array_equal(new[name], old), name
        else:
            x = FORMATS[source].dequantise(old)
            assert np.array_equal(new[name], FORMATS[wanted[name]].quantise(x)), name


def test_importance_matrix_changes_the_fit(small, tmp_path):
    """Matrices in the file are fitted by it; others are not, and the user is told."""
    matters = importance()
    new = made(small, tmp_path / "out.gguf", "Q4_K_M", importance=matters)
    with GGUFFile(small) as file:
        plan = choices(file, Recipe("Q4_K_M", importance=matters))
    old, weighed = stored(small), 0
    for choice in plan:
        name, form = choice.tensor.name, FORMATS[choice.format]
        if choice.copied:
            continue
        x = FORMATS["F32"].dequantise(old[name])
        plain = form.quantise(x)
        if name in matters.columns and form.encode_weighted:
            columns = matters.of(name, x.shape[1])
            assert np.array_equal(new[name], form.quantise_weighted(x, columns)), name
            assert not np.array_equal(new[name], plain)
            assert not choice.note or "rows of 288" in choice.note
            weighed += 1
        else:
            assert np.array_equal(new[name], plain), name
            assert ("not in the importance" in choice.note) == (name not in matters.columns), name
    assert weighed >= 12


def test_keys_and_tensor_order_are_kept(small, tmp_path):
    """All keys stay, in order; the file type and the importance matrix's origin are set. Tensors
    keep their order and shapes."""
    out = tmp_path / "out.gguf"
    made(small, out, "q4_k", importance=importance())
    with GGUFFile(small) as before, GGUFFile(out) as after:
        new = dict(after.metadata)
        assert new.pop("general.file_type") == gguf.LlamaFileType.MOSTLY_Q4_K_M
        assert new.pop("general.quantization_version") == gguf.GGML_QUANT_VERSION
        said = {key: new.pop(key) for key in list(new) if key.startswith("quantize.imatrix.")}
        assert new == before.metadata
        assert list(new) == list(before.metadata)
        assert [(t.name, t.dims) for t in after.tensors.values()] == [
            (t.name, t.dims) for t in before.tensors.values()
        ]
    assert said == {
        "quantize.imatrix.file": "small.imatrix", "quantize.imatrix.dataset": "a.txt",
        "quantize.imatrix.entries_count": 14, "quantize.imatrix.chunks_count": 3,
    }  # fmt: skip


@pytest.mark.parametrize("weighed", [None, importance()], ids=["plain", "weighed"])
def test_threads_and_pieces_give_the_same_file(small, tmp_path, monkeypatch, weighed):
    """One thread or two, pieces of a tensor or a row: the same file."""
    files = []
    for threads, piece in ((1, PIECE), (2, PIECE), (2, 700)):
        monkeypatch.setattr(MODULE, "PIECE", piece)
        made(small, tmp_path / "out.gguf", "Q4_K_M", threads, importance=weighed)
        files.append((tmp_path / "out.gguf").read_bytes())
    assert files[0] == files[1] == files[2]


def test_other_tensors_are_copied(tmp_path):
    """Tensors that are not numeric matrices are copied; a sparse file keeps its magic."""
    path, names = tmp_path / "in.gguf", ("blk.0.gpu_idx", "router.ffn_gate_inp.weight")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor(names[0], np.arange(10, dtype=np.int32).reshape(2, 5))
    writer.add_tensor(names[1], np.arange(64, dtype=np.float32).reshape(2, 32))
    writer.add_tensor("x.weight", np.zeros((0, 32), np.float32))
    writer.add_tensor("y.weight", np.ones((3, 32), np.float32))
    written(writer, path)
    path.write_bytes(b"PWRI" + path.read_bytes()[4:])
    new = made(path, tmp_path / "out.gguf", "Q8_0")
    for name in names:
        assert np.array_equal(new[name], stored(path)[name])
    assert (new["x.weight"].size, new["y.weight"].size) == (0, 3 * 34)
    assert (tmp_path / "out.gguf").read_bytes()[:4] == b"PWRI"


def test_the_quantize_command(inside, small, tmp_path):
    """It writes what the library writes, and says so as a table or as JSON; notes go to stderr,
    one a kind. A dry run names every tensor and writes nothing."""
    out, again = tmp_path / "out.gguf", tmp_path / "again.gguf"
    options = ["--pure", "--output-type", "q6_k", "--tensor-type", "attn_q=Q8_0", "-t", "1"]
    assert "blk.1.ffn_down.weight" in printed(inside("quantize", small, out, "Q8_0", "--dry-run"))
    assert not list(tmp_path.iterdir())
    code, stdout, stderr = inside("quantize", small, out, "q4_k_m", *options)
    assert code == 0
    assert complaints(stderr) == "note: 2 tensors: Q5_0, since rows of 288 take no Q4_K\n"
    assert "bits a weight become" in stdout
    made(small, again, "Q4_K_M", pure=True, output="Q6_K", overrides=[("attn_q", "Q8_0")])
    assert out.read_bytes() == again.read_bytes()
    stdout = printed(inside("quantize", small, out, "q4_k_m", *options, "--json"))
    with GGUFFile(out) as file:
        assert [(r["tensor"], r["to"], r["bytes"]) for r in json.loads(stdout)] == [
            (t.name, t.type_name, t.n_bytes) for t in file.tensors.values()
        ]


def with_one_element(path: Path, name: str, row: int, column: int, value: float) -> Path:
    """The small model with one element replaced."""
    SMALL.write(path)
    with GGUFFile(path) as file:
        tensor = file.tensors[name]
        offset = tensor.offset + row * tensor.row_bytes + 4 * column
    with path.open("r+b") as opened:
        opened.seek(offset)
        opened.write(np.float32(value).tobytes())
    return path


@pytest.mark.parametrize(
    ("value", "type_", "words"),
    [(np.nan, "Q8_0", "is nan, which Q8_0 cannot hold"), (np.inf, "F16", "is inf, which F16"),
     (-np.inf, "BF16", "is -inf, which BF16"), (65520, "F16", "is 65520, which F16"),
     (-1e5, "Q4_0", "is -100000, which Q4_0"), (3.4e38, "BF16", "is 3.4e+38, which BF16")],
)  # fmt: skip
def test_overflowing_elements_are_named(inside, tmp_path, monkeypatch, value, type_, words):
    """The line names the element, row and tensor, in a later piece too."""
    name, row, column = "blk.1.attn_q.weight", 37, 9
    monkeypatch.setattr(MODULE, "PIECE", 4096)
    path = with_one_element(tmp_path / "in.gguf", name, row, column, value)
    before = path.read_bytes()
    line = fault(inside("quantize", path, tmp_path / "out.gguf", type_))
    assert line.startswith(f"tensor '{name}': element {column} of row {row} {words}")
    assert [p.name for p in tmp_path.iterdir()] == ["in.gguf"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(("value", "type_"), [(1e30, "BF16"), (-3.3e38, "BF16"), (65504, "F16")])
def test_large_numbers_that_fit_are_accepted(tmp_path, value, type_):
    name = "blk.1.attn_q.weight"
    path = with_one_element(tmp_path / "in.gguf", name, 37, 9, value)
    new = made(path, tmp_path / "out.gguf", type_)[name]
    assert FORMATS[type_].dequantise(new)[37, 9] == pytest.approx(value, rel=2**-8)


@pytest.mark.parametrize(
    ("type_", "recipe", "message"),
    [
        ("Q9_0", {}, "there is no type 'Q9_0': want F32, F16"),
        ("Q4_0", {"overrides": [("attn", "Q9")]}, "Q9 is no format: want "),
        ("Q4_0", {"output": "Q4_K_M"}, "Q4_K_M is no format: want "),
        ("Q4_0", {"overrides": [("attn(", "Q8_0")]}, "'attn(' is no regular expression: "),
        ("Q4_0", {"overrides": [("attn_p", "Q8_0")]}, "no matrix's name matches 'attn_p'"),
        ("Q4_0", {"overrides": [("_norm", "Q8_0")]}, "no matrix's name matches '_norm'"),
        ("Q4_0", {"importance": Importance({"blk.1.attn_q.weight": np.ones(8, np.float32)}, "i")},
         "i: blk.1.attn_q.weight has 8 columns there, and 256 in the model"),
        ("Q4_0", {"importance": Importance({"x": np.ones(8, np.float32)}, "i")},
         "i: there is no matrix of this model in it"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(small, type_, recipe, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        formats(small, type_, **recipe)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("out", ["missing/out.gguf", ".", "small.gguf", "link.gguf"])
def test_invalid_output_paths_are_refused(small, tmp_path, out):
    """A missing folder, a folder, and the source file itself, under any name."""
    model = tmp_path / "small.gguf"
    model.write_bytes(small.read_bytes())
    (tmp_path / "link.gguf").hardlink_to(model)
    with pytest.raises(OutputError, match="cannot be written"):
        made(model, tmp_path / out, "Q8_0")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.gguf", "small.gguf"]
    assert model.read_bytes() == small.read_bytes()


def test_full_disk(small, tmp_path):
    """One line; the previous file stays, and no other is left."""
    out = tmp_path / "out.gguf"
    out.write_bytes(b"before")
    refused = pytest.raises(OutputError, match=r"out\.gguf: cannot be written: file too large")
    with full_after(50_000), refused:
        made(small, out, "Q8_0")
    assert out.read_bytes() == b"before"
    assert [p.name for p in tmp_path.iterdir()] == ["out.gguf"]


@changing
def test_a_source_modified_while_it_is_read_is_refused(small, tmp_path, change, message):
    model, out = tmp_path / "model.gguf", tmp_path / "out.gguf"
    model.write_bytes(small.read_bytes())
    seen: list[int] = []

    def progress(done: int, _: int) -> None:
        if not seen:
            change(model)
        seen.append(done)

    with GGUFFile(model) as file, pytest.raises(GGUFError, match=message):
        quantise(file, out, Recipe("Q8_0"), threads=1, progress=progress)
    assert seen
    assert [p.name for p in tmp_path.iterdir()] == ["model.gguf"]


LARGE = 300 * 2**20  # bytes of weights
MEASURED = """
import sys
from pathlib import Path
from engine.gguf.file import GGUFFile
from engine.quantise import Recipe, quantise
def most():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
begun = []
def progress(done, total):
    begun or begun.append(most())
with GGUFFile(sys.argv[1]) as file:
    quantise(file, Path(sys.argv[2]), Recipe("Q8_0"), threads=1, progress=progress)
print(most() - begun[0])
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A sparse file of zeros as a model, which takes no disk space."""
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor_info("token_embd.weight", (LARGE // 4096, 2048), np.dtype(np.float16), LARGE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, -(-path.stat().st_size // 32) * 32 + LARGE)
    yield path
    path.unlink()


def test_quantising_takes_little_memory(large, tmp_path):
    """Quantising 300 MB takes the memory of a few pieces."""
    out = tmp_path / "out.gguf"
    done = python(MEASURED, large, out)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 12 * PIECE
    assert out.stat().st_size > LARGE * 34 / 64
    out.unlink()


def test_interrupted(large, tmp_path):
    """Ctrl-C during the work is one line, and leaves nothing."""
    out, began = tmp_path / "out.gguf", time.monotonic()
    part = out.with_name("out.gguf.part")
    with started(PROGRAM, "quantize", large, out, "Q8_0", "-t", 1) as program:
        while not (part.exists() and part.stat().st_size > 2**20):
            assert program.poll() is None
            assert time.monotonic() - began < 100
            time.sleep(0.001)
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=60)
    assert (program.returncode, errors) == (1, "assay: interrupted\n")
    assert not list(tmp_path.iterdir())
