"""The profile of a step: stamps that change nothing, costs that are the step's, and a sum that is
the whole."""

import json
import re
import time

import numpy as np
import pytest

import bench.machine.limits
from bench.engine.node_cost import cost_of
from bench.engine.profile import ProfileError, profile
from bench.machine.clock import Stamped
from bench.race.results import Limit
from bench.shell.profile import as_dict, kept_table
from bench.shell.profile import profile as command
from bench.tests.support.programs import shell as shell_of
from bench.tests.support.synthetic import QUICK, limits
from engine import DuoAttention, Engine, PyramidKV, Quest, SamplingParams
from engine.embedded import resolve
from engine.gguf.edit import keys_of
from engine.gguf.file import GGUFFile
from engine.gguf.writer import NewTensor, u32, write_gguf
from engine.policies.retrieval import write
from kernels.cpu.runtime.share import arguments, pack_words, share
from kernels.cpu.runtime.team import Team
from reference.cache.policies import pyramid

SMALL = "story-draft-q8_0"  # its linear nodes read quantised activations
SPIN = "count: i64 -> out: f64[one]"


@pytest.fixture(params=[1, 2], scope="module")
def engine(request):
    with Engine.load(SMALL, threads=request.param, context=96) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def found(engine):
    return profile(engine, depth=9, rule=QUICK, limits=limits())


def test_a_step_that_differs_is_no_profile(engine, monkeypatch):
    """Every profile demands of its stamped step the very logits of the step without."""
    monkeypatch.setattr(Stamped, "run", Stamped.bare)
    with pytest.raises(ProfileError, match="other logits"):
        profile(engine, rule=QUICK, depth=3)


@share(SPIN)
def spin(args, thread, n_threads):
    """Work that takes as long as its count is large."""
    count, out = arguments(args, SPIN)
    value = 1.0
    for _ in range(count):
        value = value * 1.0000001 + 1e-9
    if thread == 0:
        out[0] = value


def test_stamps_are_of_the_clock():
    """Stamps are in order, and between what Python's monotonic clock says before and after."""
    block = pack_words(SPIN, {"count": 10, "out": np.zeros(1)})
    timed = Stamped([(spin, block)] * 3)
    with Team(2) as team:
        before = time.monotonic_ns()
        laps = timed.run(team)
        after = time.monotonic_ns()
    moments = [before, *timed.times, after]
    assert moments == sorted(moments)
    assert 1e9 * laps.sum() == pytest.approx(timed.times[-1] - timed.times[1])


def test_heads_that_keep_others_are_told_apart(tmp_path):
    """Of a block of which some heads stream, each kind has its cells and its bytes."""
    write(heads := tmp_path / "heads.tsv", np.array([[0, 1], [1, 1]]))
    policy = DuoAttention(4, 8, stride=1, sparsity=25, heads=str(heads))
    with Engine.load(SMALL, threads=2, context=96, kv_policy=policy) as engine:
        found = profile(engine, depth=60, rule=QUICK, limits=limits())
    streaming = "blk.0.attention_streaming"
    assert found.kept == {"blk.0.attention_whole": 60, streaming: 11, "blk.1": 60}
    read = {row["block"]: row["attention_bytes"] for row in as_dict(found)["kept"]}
    rest = read.pop("blk.1") - 2 * read["blk.0.attention_whole"]  # which is a head of its two
    assert abs(rest) < read[streaming] < read["blk.0.attention_whole"] / 3


@pytest.mark.parametrize("threads", [1, 2])
def test_a_lap_is_of_its_own_entry(threads):
    """The one entry that is slow has the long lap, and no other has."""
    out = np.zeros(1)
    counts = [10, 200_000, 10]
    blocks = [pack_words(SPIN, {"count": count, "out": out}) for count in counts]
    timed = Stamped([(spin, block) for block in blocks])
    with Team(threads) as team:
        laps = np.median([timed.run(team) for _ in range(9)], axis=0)
    assert laps[1] > 5 * max(laps[0], laps[2])


def test_what_a_policy_keeps_is_what_attention_reads():
    """A block's cells are those that the policy keeps, and beside them a step reads its own."""
    policy = PyramidKV(20, window=4)
    with Engine.load(SMALL, threads=2, context=96, kv_policy=policy) as engine:
        found = profile(engine, depth=60, rule=QUICK, limits=limits())
        blocks = engine.model.config.blocks
        row = engine.model.caches["blk.0.k_cache"].shape[1]
    assert list(found.kept.values()) == pyramid(20, 4, 20, blocks, 60)
    read = {n.shape.rpartition(".")[0]: n.bytes for n in found.nodes if n.test == "attention"}
    beside = {read[block] - 2 * row * (cells + 1) for block, cells in found.kept.items()}
    assert len(beside) == 1, "queries and what comes of them"
    assert as_dict(found)["kept"][0] == {
        "block": "blk.0", "cells": found.kept["blk.0"], "attention_bytes": read["blk.0"]
    }  # fmt: skip
    assert kept_table(found).row_count == blocks + 1
    assert not found.rejected()


def test_nodes_and_remainder_are_the_step(engine, found):
    """The rows are the plan's nodes, each once and in their order; by node or by op, all and the
    remainder sum to the step's median."""
    assert [n.shape for n in found.nodes] == [s.node.label for s in engine.model.plan.steps]
    assert len({n.shape for n in found.nodes}) == len(found.nodes)
    assert sum(calls for calls, _ in found.by_op()) == len(found.nodes)
    for rows in (found.nodes, [row for _, row in found.by_op()]):
        total = sum(row.median for row in rows) + found.remainder
        assert total == pytest.approx(found.step.median)
    assert all(row.median > 0 for row in found.nodes)
    assert found.interruptions < found.step.median
    assert found.overhead_seconds > 0


def test_a_decode_reads_every_weight(found):
    """A decode's bytes are at least those of its weights, and not much more."""
    with GGUFFile(resolve(SMALL)) as file:
        weights = sum(t.nbytes for n in file.tensors if "embd" not in n for t in [file.tensor(n)])
    assert weights <= sum(node.bytes for node in found.nodes) < 1.5 * weights


@pytest.mark.parametrize("tokens", [1, 5])
def test_a_mixture_reads_its_chosen_experts(tokens, tmp_path):
    """Where all tokens of a step go to the same two of four experts, bytes are those of these two,
    and of what the products read and write."""
    path = mixture_of(SMALL, 4, tmp_path / "mixture.gguf")
    with Engine.load(path, threads=2, context=32) as engine, GGUFFile(path) as file:
        nodes = profile(engine, tokens, depth=3, rule=QUICK).nodes
        found = {node.shape: node.bytes for node in nodes if node.test == "linear_experts"}
        assert len(found) == 3 * engine.model.config.blocks
        for label, read in found.items():
            _, out, hidden = file.tensors[f"{label}.weight"].dims
            matrix = file.tensors[f"{label}.weight"].n_bytes / 4
            assert read == 2 * matrix + 4 * 2 * tokens * (hidden + out)


def mixture_of(name, experts, path):
    """An embedded model whose networks are so many experts alike, of which the router, who sees no
    difference, names the first two."""
    tensors, data = [], []
    with GGUFFile(resolve(name)) as file:
        counts = {"llama.expert_count": u32(experts), "llama.expert_used_count": u32(2)}
        for tensor in file.tensors.values():
            network = "ffn_" in tensor.name and len(tensor.dims) == 2
            own = tensor.name.replace(".weight", "_exps.weight") if network else tensor.name
            dims = (experts, *tensor.dims) if network else tensor.dims
            tensors.append(NewTensor(own, tensor.type_name, dims))
            data += [file.tensor(tensor.name).reshape(-1)] * (experts if network else 1)
        hidden = file.metadata["llama.embedding_length"]
        for block in range(file.metadata["llama.block_count"]):
            router = f"blk.{block}.ffn_gate_inp.weight"
            tensors.append(NewTensor(router, "F32", (experts, hidden)))
            data.append(np.zeros(4 * experts * hidden, np.uint8))
        write_gguf(path, keys_of(file) | counts, tensors, iter(data))
    return path


def test_a_prompt_meets_the_cells_of_its_tokens(engine):
    """A prompt's attention does what its tokens would do one by one, and reads each cell once."""
    (step, *_) = (s for s in engine.model.plan.steps if s.node.op == "attention")
    tokens, depth = 5, 3
    together = cost_of(step, {"tokens": tokens, "outputs": 1}, depth)
    alone = [cost_of(step, {"tokens": 1, "outputs": 1}, depth + t) for t in range(tokens)]
    assert together.operations == sum(cost.operations for cost in alone)
    assert alone[-1].bytes < together.bytes < sum(cost.bytes for cost in alone)


def test_of_pages_only_those_chosen_are_read():
    """A block that reads all reads all; where pages are chosen attention reads these, once."""
    policy = Quest(16, page=4, dense=1)
    with Engine.load(SMALL, threads=2, context=96, kv_policy=policy) as engine:
        found = profile(engine, depth=61, rule=QUICK, limits=limits())
        row = engine.model.caches["blk.0.k_cache"].shape[1]
    (dense, all_cells), *others = [
        (node.shape, node.bytes) for node in found.nodes if node.test == "attention"
    ]
    pages = [read for name, read in others if name.endswith("attention_pages")]
    whole = [read for name, read in others if name.endswith("attention_all")]
    beside = all_cells - 2 * row * 62
    assert dense == "blk.0.attention"
    assert set(whole) == {beside}, "queries and what comes of them"
    assert set(pages) == {beside + 2 * row * (3 * 4 + 2)}, "three pages, and two cells of the last"
    (extremes,) = {n.bytes for n in found.nodes if n.test == "page_extremes"}
    assert extremes == 0, "no page became whole"
    assert not found.rejected()


@pytest.mark.parametrize(("cache", "level"), [(1 << 20, "L2"), (1 << 16, "memory")])
def test_weights_come_from_where_the_model_fits(engine, cache, level):
    """Weights are measured by the cache that holds them all, activations by the nearest."""
    measured = profile(engine, depth=9, rule=QUICK, limits=limits(cache=cache))
    names = {op: {n.limit for n in measured.nodes if n.test == op} for op in ("linear", "add")}
    assert names == {"linear": {f"{level} read"}, "add": {"L1d read"}}


def test_faster_than_the_machine_is_an_error(engine, found):
    """A share above 100% is kept as it is and rejected, below it is not."""
    assert not found.rejected()
    impossible = profile(engine, depth=9, rule=QUICK, limits=limits(1e3))
    assert impossible.rejected() == list(impossible.nodes)
    assert all(row.impossible and row.share > 1 for _, row in impossible.by_op())


def test_no_page_says_that_more_than_all_was_reached(found):
    """What is above the limit by no more than a probe's spread is the limit."""
    node = found.nodes[0]
    for spread, reached in ((0.05, 1.0), (0.01, 1.03)):
        bound = Limit("memory read", 1.03 * node.median, spread)
        assert bound.of(node).reached == pytest.approx(reached)
    assert Limit("memory read", node.median / 2, 0).of(node).reached == 0.5


def test_what_is_faster_than_the_machine_is_probed_again(shell):
    """Its memory may be twice as fast as an hour ago."""
    rows = json.loads(shell("--json", machine=limits(1e3), later=limits()))["nodes"]
    assert not any(row["rejected"] for row in rows)


def test_without_limits_there_is_no_share(engine):
    """Times stand alone where no limits were given."""
    alone = profile(engine, depth=0, rule=QUICK)
    assert {(row.share, row.limit) for row in alone.measurements()} == {(0.0, "")}


@pytest.mark.parametrize(("tokens", "depth"), [(0, 0), (1, -1), (1, 96), (90, 7)])
def test_bad_sizes_are_one_line(engine, tokens, depth):
    """A step that does not fit says so before anything runs."""
    with pytest.raises(ProfileError) as error:
        profile(engine, tokens, depth, QUICK)
    assert "\n" not in str(error.value)


def test_the_cache_is_empty_afterwards(engine):
    """An engine that was profiled generates what it did before."""
    greedy = SamplingParams(temperature=0, max_tokens=8)
    before = [piece.token for piece in engine.stream("Once upon", greedy)]
    profile(engine, tokens=5, depth=2, rule=QUICK)
    assert engine.model.cells.free == engine.model.cells.capacity
    assert [piece.token for piece in engine.stream("Once upon", greedy)] == before


@pytest.fixture
def shell(monkeypatch):
    """Runs the command with the limits of a test; what it prints."""

    def run(*words, machine=None, later=None):
        def probed(*_, again=False):
            return (later if again else None) or machine or limits()

        monkeypatch.setattr(bench.machine.limits, "limits", probed)
        return str(shell_of(command, SMALL, "-t", "1", *words).stdout)

    return run


def test_json_has_every_figure(shell):
    """Programs get the step, its nodes, its ops and the remainder, and they agree."""
    told = json.loads(shell("--json", "-p", "4"))
    assert (told["tokens"], told["depth"], told["threads"]) == (4, 0, 1)
    parts = sum(node["seconds"] for node in told["nodes"]) + told["remainder_seconds"]
    assert parts == pytest.approx(told["step_seconds"])
    assert sum(op["calls"] for op in told["ops"]) == len(told["nodes"])
    assert 0 < told["empty_step_seconds"]["1"] < told["step_seconds"]
    assert {
        "op", "kernel", "seconds", "bytes", "operations", "gb_per_second", "gflop_per_second",
        "limit", "share_of_limit", "share_of_step", "rejected",
    } <= told["nodes"][0].keys() & told["ops"][0].keys()  # fmt: skip


def test_the_table_tells_what_is_wrong(shell):
    """A rejected row is marked, and a line below the table says why."""
    sound, wrong = shell(), shell("--nodes", machine=limits(1e3))
    assert "!" not in sound
    assert "in no node" in sound
    assert re.search(
        r"an empty step of \d+ calls in \d+ stages takes [\d.]+ us on 1 thread\b", sound
    )
    assert "blk.0.attn_q" not in sound
    assert "blk.0.attn_q" in wrong
    assert "%! L2 read" in wrong
    assert "faster than the machine" in wrong
