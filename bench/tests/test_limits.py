"""The machine's limits: which one binds, what is stored, and that the probe really measures."""

import itertools
import json
import platform
import time
from dataclasses import replace

import numpy as np
import pytest

import bench.machine.limits
from bench.machine.limits import Cache, Limits, Rate, _needed, limits, probe
from bench.machine.trials import Arena, read_caches, working_sets
from bench.race.results import Limit
from bench.tests.support.programs import run
from bench.tests.support.synthetic import machine_of
from kernels.cpu.runtime.team import Team
from reference.op import Cost

KIB, MIB, GIGA = 1 << 10, 1 << 20, 1e9
X86 = platform.machine() in ("x86_64", "AMD64")


def made_up(*threads):
    """Round figures; the curve has a dip at 1 MiB, as a busy moment would leave."""
    curve = {32 * KIB: 200 * GIGA, MIB: 10 * GIGA, 32 * MIB: 50 * GIGA, 256 * MIB: 20 * GIGA}
    peaks = {("f32", "avx2 fma"): 100 * GIGA, ("int8", "avx512_vnni"): 400 * GIGA}
    caches = Cache("L1d", 32 * KIB, 1), Cache("L2", MIB, 1), Cache("L3", 32 * MIB, 8)
    found = machine_of(curve, peaks, 0.02, caches, threads)
    copies = tuple(Rate("copy", n, n * 250 * GIGA, 0.03, 32 * KIB) for n in threads)
    return replace(found, rates=(*copies, *found.rates))


COSTS = {
    "memory binds": (Cost(bytes=20e9, operations=1e9), "f32", ("memory read", 1.0, 0.02)),
    "arithmetic binds": (Cost(bytes=1e9, operations=800e9), "int8", ("int8", 2.0, 0.02)),
    "bytes alone": (Cost(20e6, 0), "f32", ("memory read", 1e-3, 0.02)),
    "operations alone": (Cost(0, 1e8), "f32", ("f32", 1e-3, 0.02)),
}


@pytest.mark.parametrize("case", COSTS)
def test_the_slower_of_memory_and_arithmetic_binds(case):
    """The limit is the larger of the time to move the bytes and the time for the operations;
    without either there is none."""
    cost, arithmetic, (name, seconds, spread) = COSTS[case]
    assert made_up(1).limit(cost, arithmetic, 1) == Limit(name, pytest.approx(seconds), spread)
    assert made_up(1).limit(Cost(0, 0), "f32", 1) is None


@pytest.mark.parametrize(
    ("working_set", "name"),
    [
        (16 * KIB, "L1d copy"), (MIB, "L2 read"), (MIB + 1, "L3 read"), (33 * MIB, "memory read"),
        (None, "memory read"),
    ],
)  # fmt: skip
def test_the_limit_is_named_after_the_cache_that_holds_the_working_set(working_set, name):
    """A limit of memory says which level serves, and whether it is read or copied fastest."""
    assert made_up(1).limit(Cost(1e6, 0), "f32", 1, working_set).name == name


def test_no_working_set_is_slower_than_a_larger_one():
    """The curve never rises with the working set, whatever dips were measured; between two probed
    sizes the faster counts. Two threads have two L1 caches, and one L3 between them."""
    machine = made_up(1)
    sizes = [4 * KIB << i for i in range(20)]
    rates = [machine.bandwidth(1, size).per_second for size in sizes]
    assert all(a >= b for a, b in itertools.pairwise(rates))
    assert machine.bandwidth(1, MIB).per_second == 50e9
    assert machine.bandwidth(1, 255 * MIB).per_second == 50e9
    assert machine.bandwidth(1).per_second == rates[-1] == 20e9
    assert [made_up(2).level(2, size * KIB) for size in (64, 64 * 1024)] == ["L1d", "memory"]


def test_what_was_not_probed_is_named():
    """A thread count or arithmetic that was not probed is an error that lists the known ones."""
    machine = made_up(1, 2)
    with pytest.raises(ValueError, match=r"no bandwidth was probed for 3 threads: 1, 2"):
        machine.bandwidth(3)
    with pytest.raises(ValueError, match=r"no f32 peak was probed for 3 threads: 1, 2"):
        machine.peak("f32", 3)
    with pytest.raises(ValueError, match=r"no peak was probed of arithmetic 'f8': f32, int8"):
        machine.peak("f8", 1)


def spoil(change):
    data = json.loads(json.dumps(made_up(1).to_json()))
    change(data)
    return data


@pytest.mark.parametrize(
    "data",
    [
        [],
        spoil(lambda d: d.pop("rates")),
        spoil(lambda d: d["caches"][0].pop("level")),
        spoil(lambda d: d["rates"][0].update(per_second=0.0)),
        spoil(lambda d: d["rates"][0].update(threads="1")),
        spoil(lambda d: d["rates"][-1].update(per_second=float("nan"))),
        spoil(lambda d: d["rates"][-1].update(spread=-0.5)),
        spoil(lambda d: d.update(when="yesterday")),
    ],
)  # fmt: skip
def test_damaged_json_is_one_plain_line(data):
    """Anything else than limits is refused in one line that says so."""
    with pytest.raises(ValueError, match=r"^damaged limits: [^\n]+$"):
        Limits.from_json(data)


@pytest.fixture
def probed(monkeypatch, tmp_path):
    """Thread counts that `limits` had probed, in a cache of its own, on a quiet machine."""
    asked = []

    def pretend(threads, progress=None, rounds=8, moved=()):
        asked.append(list(threads))
        return made_up(*threads)

    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    monkeypatch.setattr(bench.machine.limits, "probe", pretend)
    monkeypatch.setattr(bench.machine.limits, "_taken_by_others", lambda: 0.0)
    return asked


def test_the_machine_is_probed_once(probed, monkeypatch):
    """Stored limits are not measured again, and a new thread count is measured alone; another CPU
    is probed anew."""
    first = limits([1, 2])
    assert limits([2, 1]) == first
    assert {b.threads for b in limits([1, 3]).bandwidths} == {1, 3}
    assert probed == [[1, 2], [3]]
    monkeypatch.setattr(bench.machine.limits, "machine", lambda: "another")
    limits([1])
    assert probed[2:] == [[1]]


def test_limits_for_a_few_calls_are_kept_by_themselves(probed):
    """Partial limits do not replace all, and all include the few."""
    limits([1], moved=[2**20])
    limits([1], moved=[2**20 + 1])
    assert len(probed) == 1
    limits([1])
    limits([1], moved=[2**14])
    assert len(probed) == 2


def test_a_call_needs_the_working_set_below_it_and_the_largest():
    """Those that `bandwidth` uses for it on hot and on cold caches."""
    sizes = [16, 32, 64, 128]
    assert _needed(sizes, [70]) == [64, 128]
    assert _needed(sizes, [1, 32, 33]) == [16, 32, 128]
    assert _needed(sizes, []) == sizes


def test_of_several_probes_the_best_counts(probed, monkeypatch):
    """Probing again can only raise a limit, in this run and in later ones."""
    limits([1])
    faster = replace(made_up(1).peaks[0], per_second=1e15)
    slower = [replace(b, per_second=1.0) for b in made_up(1).bandwidths]
    later = replace(made_up(1), rates=(faster, *slower))
    monkeypatch.setattr(bench.machine.limits, "probe", lambda *_, **__: later)
    for machine in (limits([1], again=True), limits([1])):
        assert machine.peak("f32", 1) == faster
        assert machine.peak("int8", 1) == made_up(1).peak("int8", 1)
        assert set(machine.bandwidths) == set(made_up(1).bandwidths)


def test_damaged_lines_are_none(probed, tmp_path):
    """A truncated or corrupted line is probed anew, the others stay valid."""
    limits([1, 2])
    store = tmp_path / "limits.jsonl"
    one, two = store.read_bytes().splitlines(keepends=True)
    spoilt = two[: len(two) // 2] + b'\n\xff\n{"key": 1}\n[]\n'
    store.write_bytes(one + spoilt)
    assert {b.threads for b in limits([1, 2]).bandwidths} == {1, 2}
    assert probed == [[1, 2], [2]]
    assert store.read_bytes() == one + spoilt + two


def test_what_a_busy_machine_gave_is_not_kept(probed, monkeypatch):
    """While other programs run limits are too low, so the next run measures again."""
    clock = itertools.count(0.0, 1000.0)
    monkeypatch.setattr(bench.machine.limits, "_taken_by_others", lambda: next(clock))
    assert limits([1]) == limits([1])
    assert probed == [[1], [1]]


@pytest.mark.parametrize("threads", [[], [0], [2, -1]])
def test_thread_counts_are_positive(threads):
    """No threads, or fewer, cannot be probed."""
    for ask in (probe, limits):
        with pytest.raises(ValueError, match=r"want some, each at least 1, got \["):
            ask(threads)


def test_caches_are_read_as_linux_tells_them(tmp_path):
    """Data and unified caches with their sizes and sharers, without instruction caches and
    oddities. Without those files there are default sizes."""
    rows = [
        ("Data", "1", "48K", "0,64"), ("Instruction", "1", "32K", "0,64"),
        ("Unified", "2", "2M", "0"), ("Unified", "3", "unknown", "0"),
        ("Unified", "3", "107520K", "0-27,56-83"),
    ]  # fmt: skip
    for i, row in enumerate(rows):
        index = tmp_path / f"index{i}"
        index.mkdir()
        for name, text in zip(("type", "level", "size", "shared_cpu_list"), row, strict=True):
            (index / name).write_text(text + "\n")
    assert read_caches(tmp_path) == (
        Cache("L1d", 48 * KIB, 2), Cache("L2", 2 * MIB, 1), Cache("L3", 105 * MIB, 56)
    )  # fmt: skip
    assert {cache.level for cache in read_caches(tmp_path / "none")} == {"L1d", "L2", "L3"}


@pytest.mark.parametrize("threads", [1, 2, 3, 48])
def test_working_sets_go_from_the_smallest_cache_to_beyond_the_largest(threads):
    """They start inside L1 and end at four times what threads have of the last level."""
    caches = made_up(1).caches
    sizes = working_sets(caches, threads)
    assert sizes[0] < 32 * KIB * threads
    assert sizes[-1] == min(4 * caches[-1].reach(threads), 512 * MIB)
    assert sizes == sorted(set(sizes))


def test_a_probe_that_computes_wrongly_is_refused():
    """A figure counts only if the result shows that all of the work was done."""
    arena = Arena(64 * KIB)
    with Team(1) as team:
        for trial in arena.trials(1, 64 * KIB, cached=False):
            assert trial.seconds(team) > 0
            lost = replace(trial, expected=lambda repeats, right=trial.expected: right(repeats) + 1)
            with pytest.raises(RuntimeError, match="computes wrongly"):
                lost.seconds(team)


@pytest.mark.skipif(not X86, reason="names x86's instructions")
def test_units_are_made_of_the_instructions_they_name(tmp_path):
    """Each unit's loop holds its instruction, on a CPU that has them all."""
    program = (
        "from bench.machine.probe import PEAKS\n"
        "from kernels.cpu.runtime.object_code import assembly\n"
        "for name, word in (('amx', 'tdpbssd'), ('amx', 'ldtilecfg'), ('amx_bf16', 'tdpbf16ps'),"
        " ('avx512_bf16', 'vdpbf16ps'), ('avx512_vnni', 'vpdpbusd'),"
        " ('avx_vnni', 'vpdpbusd'), ('avx2', 'vpmaddubsw'), ('avx512', 'vpmaddubsw'),"
        " ('fma', 'vfmadd'), ('avx2 fma', 'vfmadd'), ('avx512 fma', 'vfmadd')):\n"
        "    assert word in assembly(PEAKS[name].function), (name, word)\n"
    )
    features = (
        "avx avx2 fma avx512f avx512bw avx512vl avx512vnni avx512bf16 avxvnni"
        " amx-tile amx-int8 amx-bf16"
    )
    environment = {
        "ASSAY_CACHE": str(tmp_path),
        "NUMBA_CPU_NAME": "sapphirerapids",
        "NUMBA_CPU_FEATURES": ",".join(f"+{name}" for name in features.split()),
    }
    done = run(tmp_path, "-c", program, **environment)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def here():
    """A hasty probe of this very machine, and what it told of its progress."""
    told = []
    return probe([1, 2], lambda *progress: told.append(progress), rounds=2), told


def test_what_the_probe_found_is_in_order(here):
    """Progress never goes back, and is complete in the end; what multiplies float32 may multiply
    bfloat16 and int8 as well, so those are no slower; nor is what fits L1 than what fits no cache,
    which is faster than a slow disk."""
    machine, told = here
    done, totals = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {done[-1]}
    for threads in (1, 2):
        kinds = [machine.peak(k, threads) for k in ("f32", "bf16", "int8")]
        rates = [peak.per_second for peak in kinds]
        assert rates == sorted(rates)
        near, far = machine.bandwidth(threads, 16 * KIB), machine.bandwidth(threads)
        assert near.per_second >= far.per_second > GIGA
        assert far.working_set >= min(4 * machine.last_level(), 512 * MIB)


def test_two_threads_do_no_less_than_one(here):
    """A second thread takes nothing away; where others work at the moment, look again."""
    machine, _ = here
    for _ in range(4):
        shares = []
        for kind in ("f32", "int8"):
            one, two = (machine.peak(kind, n).per_second for n in (1, 2))
            shares.append(two / one)
        if min(shares) >= 0.8:
            break
        machine = probe([1, 2], rounds=2)
    assert min(shares) >= 0.8


@pytest.mark.skipif(platform.system() == "Darwin", reason="Accelerate has units of its own")
def test_matmul_is_below_the_peak(here):
    """NumPy's matmul does no more per second of CPU time than the peak of one thread."""
    machine, _ = here
    a = np.ones((768, 768), np.float32)
    out = np.empty_like(a)
    before = time.process_time()
    for _ in range(40):  # together: CPU time is counted coarsely
        np.matmul(a, a, out=out)
    rate = 40 * 2 * 768**3 / (time.process_time() - before)
    assert machine.peak("f32", 1).per_second >= rate / 1.2
