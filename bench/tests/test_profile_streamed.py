"""The profile of a step within a budget: what it read, from where, and what it waited for."""

import json
import math
import time
from dataclasses import replace

import numpy as np
import pytest

from bench.engine.profile import ProfileError
from bench.offload.meter import Meter, block_of, place, streamed_step
from bench.offload.runner import of_weights
from bench.race.experiment import Rule
from bench.shell.profile import profile as command
from bench.shell.profile_streamed import as_dict, notes, table
from bench.tests.support.programs import shell as shell_of
from bench.tests.support.small_sparse import FFN
from engine import Engine
from engine.offload.budget import Budget
from engine.placement.statistics import Activations, write

STEPS = 4
RULE = Rule(least=STEPS, most=STEPS)
ROOM = {"on": 1_300_000, "off": 700_000}  # bytes for weights: some of them have to stream


@pytest.fixture(name="weights_alone", scope="module")
def _weights_alone():
    """Budgets are of weights alone, so that they do not hang on what this process uses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Budget, "now", of_weights)
        yield


@pytest.fixture(name="engine", scope="module", params=["on", "off"])
def _engine(request, sparse_model, weights_alone):
    options = {"threads": 1, "context": 32, "batch": 8, "sparse": request.param}
    with Engine.load(sparse_model, ram_budget=ROOM[request.param], **options) as loaded:
        yield loaded


@pytest.fixture(name="found", scope="module")
def _found(engine):
    return streamed_step(engine, depth=3, rule=RULE)


def test_every_weight_has_its_block(engine, found):
    """Streamed weights are read once a step, whatever block they are of, and none twice."""
    assert found.reading.steps == len(found.step.samples) == STEPS
    stream = engine.model.offload.stream
    assert found.reading.whole.weights == STEPS * stream.bytes > 0
    assert list(found.reading.blocks) == sorted(found.reading.blocks, key=place)
    for name, block in found.reading.blocks.items():
        mine = [w.nbytes for n, w in stream.weights.items() if block_of(n) == name]
        assert block.weights == STEPS * sum(mine)
        assert 0 <= block.waited < sum(found.step.samples)


def test_neurons_are_found_or_read(engine, found):
    """What predictors name is one or the other; those read are whole slots."""
    blocks = {n: b for n, b in found.reading.blocks.items() if b.hits + b.misses}
    neurons = engine.model.offload.neurons
    if engine.model.options.sparse == "off":
        assert neurons is None
        assert not blocks
        assert math.isnan(found.reading.whole.hit_rate)
        return
    assert list(blocks) == ["blk.0", "blk.1"]
    for i, block in enumerate(blocks.values()):
        assert block.neurons == block.misses * neurons.sources[i].slot
        assert 0 <= block.hit_rate < 1
    # of 512 neurons a block predictors name about a quarter
    assert 0.1 < (found.reading.whole.hits + found.reading.whole.misses) / STEPS / 1024 < 0.5


def test_bytes_are_the_readers_own(found):
    """The blocks' bytes are what was read, but for what is read ahead and between neurons."""
    reading = found.reading
    assert reading.bytes > reading.whole.bytes - reading.whole.weights / STEPS
    assert reading.rate == reading.bytes / reading.busy
    assert reading.whole.waited == pytest.approx(sum(b.waited for b in reading.blocks.values()))


def test_a_meter_counts_from_when_it_was_made(engine):
    """Of no steps it has nothing."""
    engine.reset()
    engine.model.evaluate([1, 2], 0)
    offload = engine.model.offload
    before = -1
    while (now := offload.readers.statistics.bytes) > before:  # what is read ahead
        before = now
        time.sleep(0.05)
    reading = Meter(offload).read(0)
    assert (reading.bytes, reading.busy, reading.whole.bytes) == (0, 0, 0)
    assert reading.rate == 0
    engine.reset()


def test_the_engine_is_as_it_was(engine, found):
    """The cache is empty, and logits are those of the model still."""
    cells = engine.model.cells
    assert cells.free == cells.capacity
    before = engine.model.evaluate([3, 4], 0).copy()
    streamed_step(engine, tokens=2, depth=0, rule=RULE)
    assert np.array_equal(engine.model.evaluate([3, 4], 0), before)
    engine.reset()


def test_a_model_without_budget_is_refused(sparse_model):
    with (
        Engine.load(sparse_model, threads=1, context=32, sparse="off") as engine,
        pytest.raises(ProfileError, match="no ram_budget"),
    ):
        streamed_step(engine, depth=0, rule=RULE)


@pytest.mark.parametrize(
    ("weight", "block"),
    [
        ("blk.11.ffn_up.weight@pack[F16]", "blk.11"),
        ("blk.0.ffn_down_t.weight", "blk.0"),
        ("output.weight@kernels.cpu.formats.packing.pack", "output"),
    ],
)
def test_blocks_of_weights(weight, block):
    """In their order, others after them."""
    assert block_of(weight) == block
    assert sorted(["output", "blk.10", "blk.9"], key=place) == ["blk.9", "blk.10", "output"]


@pytest.fixture(name="shell")
def _shell(sparse_model, weights_alone, monkeypatch):
    """Runs the command on the small model; its exit code and what it prints."""
    monkeypatch.setattr("bench.offload.meter.RULE", RULE)
    words = [str(sparse_model), "-t", "1", "-d", "3", "-c", "32"]

    def run(*more):
        done = shell_of(command, *words, *more)
        return done.exit_code, done.output

    return run


def test_the_table(shell):
    code, out = shell("--ram-budget", str(ROOM["on"]), "--sparse", "on")
    assert code == 0
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert all(float(cell) >= 0 for name in ("blk.0", "blk.1", "all") for cell in rows[name][1:])
    assert len(rows["all"]) == 4
    assert "the disk gave" in out
    assert "sparse=on,blocks=2/2" in " ".join(out.split())


def test_experts_are_called_so(found):
    """In the table, and for programs."""
    mixture = replace(found, reading=replace(found.reading, named="experts"))
    heads = [str(column.header) for column in table(mixture).columns]
    assert ("% experts found" in heads) == (not math.isnan(found.reading.whole.hit_rate))
    assert all("experts_found" in block for block in as_dict(mixture)["blocks"])


def test_json(shell):
    code, out = shell("--ram-budget", str(ROOM["off"]), "--sparse", "off", "--json")
    told = json.loads(out[out.index("{") :])
    assert code == 0
    assert told["ram_budget"] == str(ROOM["off"])
    assert (told["tokens"], told["depth"], told["threads"]) == (1, 3, 1)
    assert all(block["neurons_found"] is None for block in told["blocks"])
    assert sum(block["bytes"] for block in told["blocks"]) > 0
    assert told["waited_seconds"] < np.mean(told["samples"])


def test_pinned_neurons_are_told(shell, sparse_model, tmp_path):
    """How many of each block and of all, in the table and for programs."""
    counts = np.where(np.arange(FFN) % 8, 1, 900)
    statistics = tmp_path / "counts.npz"
    write(statistics, Activations((counts, counts), 1000))
    words = ("--ram-budget", str(ROOM["on"]), "--sparse", "on", "--activation", str(statistics))
    code, out = shell(*words, "--json")
    assert code == 0
    blocks = json.loads(out[out.index("{") :])["blocks"]
    pinned = {b["block"]: b["neurons_pinned"] for b in blocks if b["neurons_found"] is not None}
    assert sum(pinned.values()) > 0
    code, out = shell(*words)
    assert code == 0
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    told = {name: int(rows[name][3]) for name in ("blk.0", "blk.1", "all")}
    assert told == {**pinned, "all": sum(pinned.values())}
    assert f"of which the {told['all']} most active are pinned" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "told"),
    [(("--activation", "counts.npz"), "--ram-budget"),
     (("--ram-budget", "1GB", "--nodes"), "exclude each other")],
)  # fmt: skip
def test_what_does_not_go_together(shell, words, told):
    code, out = shell(*words)
    assert code == 2
    assert told in out


def test_all_in_memory_says_so(sparse_model, weights_alone):
    """A budget for everything: nothing is read, and there is nothing to divide by."""
    options = {"threads": 1, "context": 32, "batch": 8, "sparse": "off"}
    with Engine.load(sparse_model, ram_budget=10**8, **options) as engine:
        found = streamed_step(engine, depth=0, rule=RULE)
    assert found.reading.bytes == 0
    assert notes(found)[-1] == "all weights are in memory"
    assert as_dict(found)["blocks"] == []
    assert table(found).row_count == 1
