"""Making sparse models: calibration data, predictors, the file, and bad input."""

import errno
import json
import sys
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import reference.models.transformer
from conformance.llama.peers.compare import EXACT
from conformance.support.models.spelling import Spelling, letters
from conformance.support.program import fault
from engine.atomic_write import OutputError
from engine.gguf.edit import keys_of
from engine.gguf.file import GGUFFile
from engine.gguf.writer import NewTensor, write_gguf
from engine.options import Options
from engine.placement import statistics
from engine.sparsify import Predictor, SparsifyError, export, gather
from engine.sparsify.gather import Block, Gathered
from reference.formats import FORMATS
from reference.gated_activations import reglu
from reference.models.transformer import transformer
from reference.op import Array

DENSE = Spelling(blocks=2)
TEXT = "the cat sat on a mat and the rat ran at that cat " * 12
PASSAGES = [[1, *letters(TEXT[i : i + 20 + i])] for i in range(12)]
EXACTLY = Options(kv_format="F32", threads=1)
NEAR = EXACT**0.5  # of float32 activations, as a share of the largest


@pytest.fixture(name="dense", scope="module")
def _dense(tmp_path_factory):
    return DENSE.write(tmp_path_factory.mktemp("dense") / "dense.gguf")


@pytest.fixture(name="torch", scope="module")
def _torch():
    reason = "torch is not installed: make test-transformers or make test-peers"
    torch = pytest.importorskip("torch", reason=reason)
    torch.set_num_threads(1)
    return torch


def by_reference(
    monkeypatch: pytest.MonkeyPatch, passages: list[list[int]]
) -> tuple[list[Array], list[Array]]:
    """Each block's inputs [tokens, hidden] and gates [tokens, ffn], by the reference with ReLU."""
    weights, norms = DENSE.tensors()
    before = {id(norms[f"blk.{i}.ffn_norm.weight"]): i for i in range(DENSE.blocks)}
    inputs: list[list[Array]] = [[] for _ in before]
    gates: list[list[Array]] = [[] for _ in before]
    norm = reference.models.transformer.rms_norm

    def seen_norm(x: Array, weight: Array, eps: float) -> Array:
        if id(weight) in before:
            inputs[before[id(weight)]].append(x)
        return norm(x, weight, eps)

    def seen_gate(gate: Array, up: Array) -> Array:
        gates[min(range(len(gates)), key=lambda i: len(gates[i]))].append(gate)
        return reglu(gate, up)

    monkeypatch.setattr(reference.models.transformer, "rms_norm", seen_norm)
    monkeypatch.setattr(reference.models.transformer, "swiglu", seen_gate)
    for passage in passages:
        transformer(np.array(passage, np.int32), weights, norms, DENSE.shape())
    return [np.concatenate(i) for i in inputs], [np.concatenate(g) for g in gates]


def test_inputs_and_activity_are_those_of_the_reference(dense, tmp_path, monkeypatch):
    """The residual before ffn_norm, and gate > 0 wherever float32 can decide it."""
    inputs, gates = by_reference(monkeypatch, PASSAGES)
    with gather(dense, PASSAGES, tmp_path, EXACTLY) as found:
        assert found.tokens == sum(map(len, PASSAGES))
        for i in range(DENSE.blocks):
            block = found.block(i)
            assert np.abs(block.inputs - inputs[i]).max() <= NEAR * np.abs(inputs[i]).max()
            clear = np.abs(gates[i]) > NEAR * np.abs(gates[i]).max()
            active = block.active(np.arange(found.tokens))
            assert np.array_equal(active[clear], gates[i][clear] > 0)
            assert np.array_equal(found.counts[i], active.sum(axis=0))
    assert not list(tmp_path.iterdir())


def test_held_out_passages(dense, tmp_path):
    with gather(dense, PASSAGES, tmp_path, EXACTLY) as found:
        want = [np.full(len(p), i in (9, 11)) for i, p in enumerate(PASSAGES)]
        assert np.array_equal(found.held_out, np.concatenate(want))


def test_an_interrupted_gathering_leaves_nothing(dense, tmp_path):
    with (
        pytest.raises(KeyboardInterrupt),
        gather(dense, PASSAGES, tmp_path, EXACTLY, interrupt_after(3)),
    ):
        pass
    assert not list(tmp_path.iterdir())


def interrupt_after(calls: int) -> Callable[[int, int], None]:
    """A watcher that raises Ctrl-C after this many calls."""
    seen = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        assert done <= total
        if len(seen) == calls:
            raise KeyboardInterrupt

    return progress


def predictors(rank: int = 32) -> list[Predictor]:
    rng = np.random.default_rng(3)

    def normal(*dims: int) -> Array:
        return rng.standard_normal(dims, np.float32)

    return [
        Predictor(normal(rank, DENSE.hidden), normal(DENSE.ffn, rank)) for _ in range(DENSE.blocks)
    ]


@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_the_file_tensor_by_tensor(tmp_path, format):
    """Down is transposed, in its own format; predictors are F16; other tensors are unchanged byte
    for byte, and so are the keys except for the threshold."""
    path = replace(DENSE, format=format).write(tmp_path / "dense.gguf")
    made, out = predictors(), tmp_path / "sparse.gguf"
    with GGUFFile(path) as file:
        export(file, out, made, 0.25)
        with GGUFFile(out) as sparse:
            assert (sparse.magic, sparse.version) == ("PWRI", 3)
            assert sparse.metadata["powerinfer.sparse_threshold"] == 0.25
            keys = keys_of(sparse)
            del keys["powerinfer.sparse_threshold"]
            assert keys == keys_of(file)
            new = {"ffn_down", "ffn_down_t", "fc1", "fc2"}
            for name in sparse.tensors.keys() | file.tensors.keys():
                if name.split(".")[-2] in new:
                    continue
                assert sparse.tensors[name].type_name == file.tensors[name].type_name
                assert np.array_equal(sparse.tensor(name), file.tensor(name)), name
            form = FORMATS[format]
            for i, predictor in enumerate(made):
                down = form.dequantise(file.tensor(f"blk.{i}.ffn_down.weight")).T
                turned = sparse.tensor(f"blk.{i}.ffn_down_t.weight")
                assert sparse.tensors[f"blk.{i}.ffn_down_t.weight"].type_name == format
                assert np.array_equal(turned, form.quantise(np.ascontiguousarray(down)))
                for name, matrix in (("fc1", predictor.fc1), ("fc2", predictor.fc2)):
                    stored = sparse.tensor(f"blk.{i}.{name}.weight").view(np.float16)
                    assert np.array_equal(stored, matrix.astype(np.float16))
                assert f"blk.{i}.ffn_down.weight" not in sparse.tensors


def planted_activity(rank: int, hidden: int = 128, ffn: int = 64, tokens: int = 6000) -> Block:
    """A block whose activity a predictor of this rank could learn: neurons are active where a sum
    of `rank` ReLUs of the input exceeds 1, about a quarter of them."""
    rng = np.random.default_rng(rank)
    inputs = rng.standard_normal((tokens, hidden), np.float32)
    inner = np.maximum(inputs @ rng.standard_normal((hidden, rank)), 0)
    logits = inner @ rng.standard_normal((rank, ffn)) * (2 / (rank * hidden)) ** 0.5
    return Block(inputs, np.packbits(logits > 0.7, axis=1), ffn)


def test_predictors_recover_planted_activity(torch):
    """Rank 4 suffices for data generated by rank 4, so the search ends at its first step; the
    recall on held-out tokens is the requested one, and the figures equal a direct count's."""
    from engine.sparsify.train import THRESHOLD, Training, train

    block, held_out = planted_activity(4), np.arange(6000) % 10 == 0
    predictor, judged = train(block, held_out, Training(recall=0.9, steps=250))
    assert predictor.rank == 32
    active = block.active(np.flatnonzero(held_out))
    inner = np.maximum(block.inputs[held_out].astype(float) @ predictor.fc1.T.astype(float), 0)
    logits = inner @ predictor.fc2.T.astype(float)
    predicted = logits >= THRESHOLD
    close = np.sum(np.abs(logits - THRESHOLD) < NEAR * np.abs(logits).max())
    assert judged.pairs == active.size
    assert judged.active == active.sum()
    assert abs(judged.predicted - predicted.sum()) <= close
    assert abs(judged.right - (predicted & active).sum()) <= close
    assert judged.recall == pytest.approx(0.9, abs=0.01)
    assert judged.precision > 0.8 > 2 * judged.active_share


def test_the_rank_grows_until_the_recall_suffices(torch):
    """A block that nothing predicts gets the largest rank, or the requested one, and a threshold
    with the requested recall all the same."""
    from engine.sparsify.train import Training, ladder, train

    assert ladder(256) == [32, 64, 128]
    assert ladder(20) == [32]
    rng = np.random.default_rng(1)
    noise = np.packbits(rng.random((2000, 40)) < 0.3, axis=1)
    block = Block(rng.standard_normal((2000, 128), np.float32), noise, 40)
    held_out = np.arange(2000) % 4 == 0
    tried = set()
    training = Training(recall=0.9, steps=30)
    predictor, judged = train(block, held_out, training, lambda rank, _: tried.add(rank))
    assert tried == {32, 64}
    assert predictor.rank == 64
    assert judged.recall >= 0.89
    predictor, _ = train(block, held_out, replace(training, rank=16))
    assert predictor.rank == 16


def test_training_is_reproducible(torch):
    from engine.sparsify.train import Training, train

    block, held_out = planted_activity(4, tokens=500), np.arange(500) % 10 == 0
    one, other = (train(block, held_out, Training(steps=20))[0] for _ in range(2))
    assert np.array_equal(one.fc1, other.fc1)
    assert np.array_equal(one.fc2, other.fc2)


def test_the_sparsify_command(torch, dense, tmp_path, inside):
    """`assay sparsify` writes the file and statistics, and prints each block's figures."""
    text, out, kept = tmp_path / "text", tmp_path / "out.gguf", tmp_path / "activation"
    text.write_text(TEXT)
    more = ["--statistics", kept, "--steps", 20, "-c", 40, "--rank", 32, "--json", "-t", 1]
    code, stdout, stderr = inside("sparsify", dense, text, out, *more)
    assert code == 0
    found = json.loads(stdout)
    relu, silu, blocks = *found["perplexities"].values(), found["blocks"]
    assert ("note" in stderr) == (silu < relu)
    assert stderr.count("\n") == (silu < relu)
    assert [b["rank"] for b in blocks] == [32, 32]
    counts = statistics.read(kept)
    with GGUFFile(out) as sparse:
        assert sparse.tensors["blk.1.fc2.weight"].dims == (DENSE.ffn, 32)
        counts.check(sparse, (DENSE.ffn,) * DENSE.blocks)
        with pytest.raises(statistics.StatisticsError, match="another model"):
            counts.check(sparse, (DENSE.ffn,))
    assert all(torch.is_tensor(torch.load(file)) for file in kept.iterdir())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["activation", "out.gguf", "text"]
    _, shown, _ = inside("sparsify", dense, text, out, *(a for a in more if a != "--json"))
    assert f"{blocks[1]['active_share']:.1%}" in shown
    refused = fault(inside("sparsify", out, text, tmp_path / "again.gguf"))
    assert refused == f"{out}: this model is sparse already"


def test_an_interrupted_training_leaves_nothing(torch, dense, tmp_path):
    from engine.sparsify.sparsify import Watchers, sparsify
    from engine.sparsify.train import Training

    def interrupt(block: int, rank: int, step: int) -> None:
        if block == 1:
            raise KeyboardInterrupt

    out = tmp_path / "out.gguf"
    with pytest.raises(KeyboardInterrupt):
        sparsify(dense, PASSAGES, out, Training(steps=3, rank=8), threads=2,
                 watchers=Watchers(trained=interrupt))  # fmt: skip
    assert not list(tmp_path.iterdir())
    assert torch.get_num_threads() == 1


def test_missing_torch_is_one_line(dense, tmp_path, inside, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    for module in ("sparsify", "train"):
        monkeypatch.delitem(sys.modules, f"engine.sparsify.{module}", raising=False)
    (tmp_path / "text").write_text(TEXT)
    line = fault(inside("sparsify", dense, tmp_path / "text", tmp_path / "out.gguf"))
    assert line == "predictors are trained with PyTorch: pip install torch"


def test_a_model_without_gates_is_refused(dense, tmp_path):
    """So is one whose down has no format to be written in."""
    with GGUFFile(dense) as file:
        for name, kind, why in (
            ("blk.1.ffn_gate.weight", None, "tensor blk.1.ffn_gate.weight is missing"),
            ("blk.0.ffn_down.weight", "F64", "is F64, which nothing can be written in"),
        ):
            changed = [
                NewTensor(t.name, kind if kind and t.name == name else t.type_name, t.dims)
                for t in file.tensors.values()
                if kind or t.name != name
            ]
            path = tmp_path / "changed.gguf"
            empty = (np.zeros(t.n_bytes, np.uint8) for t in changed)
            write_gguf(path, keys_of(file), changed, empty)
            with GGUFFile(path) as other, pytest.raises(SparsifyError, match=why):
                export(other, tmp_path / "out.gguf", predictors(), 0.0)
    assert [p.name for p in tmp_path.iterdir()] == ["changed.gguf"]


def test_predictors_that_do_not_fit_are_refused(dense, tmp_path):
    """One too few, and numbers that overflow F16."""
    huge = [replace(p, fc2=p.fc2 * np.float32(1e6)) for p in predictors()]
    with GGUFFile(dense) as file:
        with pytest.raises(SparsifyError, match="1 predictors for 2 blocks"):
            export(file, tmp_path / "out.gguf", predictors()[:1], 0.0)
        with pytest.raises(SparsifyError, match=r"blk.0.fc2.weight: element .* F16 cannot hold"):
            export(file, tmp_path / "out.gguf", huge, 0.0)
        with pytest.raises(OutputError, match="it is the file that is read"):
            export(file, dense, predictors(), 0.0)
    assert not list(tmp_path.iterdir())


def test_too_short_texts_are_refused(dense, tmp_path):
    for passages, why in (
        (PASSAGES[:1], "at least 2 passages of text, got 1"),
        ([[1, 5], [1]], "passage 1 has fewer than 2 tokens"),
    ):
        with pytest.raises(SparsifyError, match=why), gather(dense, passages, tmp_path):
            pass


def test_too_small_disks_are_refused(dense, tmp_path, monkeypatch):
    class Usage:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    why = r"tokens need .* GB there .*, 0\.0 GB are free"
    with pytest.raises(OutputError, match=why), gather(dense, PASSAGES, tmp_path, EXACTLY):
        pass


def test_a_disk_that_fills_up_is_one_line(dense, tmp_path, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Gathered, "add", full)
    why = f"{tmp_path}: cannot be written: no space left on device"
    with pytest.raises(OutputError, match=why), gather(dense, PASSAGES, tmp_path, EXACTLY):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "wrong", [["--recall", "0"], ["--recall", "1.1"], ["--rank", "-1"], ["--steps", "0"]]
)
def test_wrong_usage_of_sparsify(dense, wrong, inside):
    code, stdout, stderr = inside("sparsify", dense, dense, "out.gguf", *wrong)
    assert (code, stdout) == (2, "")
    assert wrong[0] in stderr
