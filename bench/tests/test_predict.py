"""What is predicted of CUDA kernels, against numbers worked by hand."""

import json

import pytest

from bench.cuda import cases, predict
from bench.cuda.predict import Work, balance, held_against, of_launch
from bench.cuda.staged import Paced, Step, Walk
from bench.race.results import Measurement
from bench.shell.predict import predict as command
from bench.tests.support.programs import shell
from data.gpus import GpuModel, gpus
from data.shapes import read
from kernels.cuda.runtime import sass
from kernels.cuda.runtime.launch import Grid, Launch
from kernels.table import find_any

# A cycle is a nanosecond, and memory gives 1,000 bytes in one.
ROUND = GpuModel("round", 90, 10, 1000, 1000 / predict.READ, 1.0, 1.0, 1, 500, 0, 0)
NOWHERE = Launch("x.cu", "x", "weight: u8[n] -> out: f32[n]", lambda shape: Grid((1, 1, 1), 32))
NOT_HERE = pytest.mark.skipif(bool(sass.missing()), reason=sass.missing())


def instruction(address: int, opcode: str, operands: str = "", **more) -> sass.Instruction:
    words = tuple(word.strip() for word in operands.split(","))
    values = {"stall": 1, "sets": None, "waits": frozenset(), **more}
    return sass.Instruction(address, "", opcode, words, **values)


def code(*instructions: sass.Instruction, registers: int = 32) -> sass.MachineCode:
    """A loop of these: the label stands before the first."""
    compiled = sass.Compiled(b"", registers, 0, 0)
    first = instruction(0, "LDC.64", "R2, c[0x0][0x210]")
    labels = {"again": 16}
    return sass.MachineCode(NOWHERE, 90, compiled, (first, *instructions), labels)


STREAM = (
    instruction(16, "LDG.E.128", "R4, desc[UR4][R2.64]", sets=0),
    instruction(32, "FFMA", "R8, R4, R5, R8", waits=frozenset({0})),
    instruction(48, "BRA", "`(again)", label="again", stall=2),
)


def test_a_warp_that_waits():
    """40 warps of a block each, four to a multiprocessor, read 512 bytes a turn, ten turns. Each
    asks, waits for memory's latency, and does so again: 204,800 bytes in ten times that. Memory
    that was never busy would take 500 cycles, 40.96 bytes a nanosecond or 4.1 % of its rate; so
    busy, it takes 500 (1 + 2 * 0.038), which is what is found."""
    work = Work(40 * 10 * 512, 0.0, ("weight",))
    found = of_launch(ROUND, code(*STREAM), Grid((40, 1, 1), 32), work)
    ends = predict.LAUNCH + 1e-9 * (500 + predict.DRAIN)
    busy = balance(204.8e-9, lambda u: 1e-9 * 10 * (500 * (1 + 2 * u) + 3))
    turns = (found.seconds - ends) * 1e9 / 10
    assert busy == pytest.approx(0.0379, abs=0.0005)
    assert turns == pytest.approx(500 * (1 + 2 * busy) + 3, rel=0.01)
    assert found.waves == pytest.approx(40 / (10 * 32))
    assert found.at_once == 32
    # four warps of 512 bytes each are on their way nearly all the time, as Little's law has it
    assert found.flight == pytest.approx(4 * 512, rel=0.02)
    assert found.needed == pytest.approx(100 * 1500)  # a tenth of the rate, for three latencies


def test_memory_is_the_limit_where_enough_is_on_its_way():
    """64 warps a multiprocessor of 4 KiB a turn each: 1.7 latencies' worth of memory's rate."""
    loads = tuple(
        instruction(16 + 16 * i, "LDG.E.128", f"R{4 + 4 * i}, desc[UR4][R2.64]", sets=0)
        for i in range(8)
    )
    rest = (
        instruction(160, "FFMA", "R4, R4, R5, R8", waits=frozenset({0})),
        instruction(176, "BRA", "`(again)", label="again"),
    )
    work = Work(320 * 20 * 4096, 0.0, ("weight",))
    found = of_launch(ROUND, code(*loads, *rest), Grid((320, 1, 1), 64), work)
    ends = predict.LAUNCH + 1e-9 * (500 + predict.DRAIN)
    assert found.limit == "memory"
    assert found.seconds - ends == pytest.approx(320 * 20 * 4096 / 1e12, rel=1e-6)
    assert found.flight > found.needed


def test_the_last_wave_is_as_long_as_its_blocks():
    """Registers leave room for two blocks of eight warps; of 21 blocks the last waits alone."""
    loop = code(*STREAM, registers=128)
    full = of_launch(ROUND, loop, Grid((20, 1, 1), 256), Work(20 * 8 * 512, 0.0, ("weight",)))
    more = of_launch(ROUND, loop, Grid((21, 1, 1), 256), Work(21 * 8 * 512, 0.0, ("weight",)))
    assert full.at_once == 2
    assert more.waves == pytest.approx(21 / 20)
    assert more.seconds - full.seconds > 0.9e-9 * 500


def test_products_are_issued_or_at_their_peak():
    """Nine instructions for one product of 8,192 operations: ten multiprocessors issue 40 a
    nanosecond, so a million products take 225 us; their peak is 1 TOPS, which is far less."""
    product = instruction(16, "IMMA.16832.S8.S8", "R4, R8, R12, R4")
    others = [instruction(32 + 16 * i, "IADD3", "R20, R20, R21, RZ") for i in range(7)]
    back = instruction(160, "BRA", "`(again)", label="again")
    body = code(product, *others, back)
    work = Work(1.0, 1e6 * 8192)
    slow = of_launch(ROUND, body, Grid((160, 1, 1), 128), work)
    assert (slow.limit, slow.seconds) == ("tensor cores", pytest.approx(8192e-6, rel=1e-3))
    fast = GpuModel("", 90, 10, 1000, 1000, 1.0, 1e6, 1, 500, 0, 0)
    issued = of_launch(fast, body, Grid((160, 1, 1), 128), work)
    assert (issued.limit, issued.seconds) == ("issue", pytest.approx(227e-6, rel=0.01))


def test_pieces_set_out_when_there_is_room():
    """Two chunks of two pieces of keys and two of values, three places, memory 100 cycles away. The
    first three set out at 200 and are used from 300 on: keys until 310, values until 330. The
    fourth has the first one's place, and so sets out at 310, is there at 410 and used until 440.
    Keys of the second chunk set out at 310 and 330, and are used until 450; values at 440 and 450,
    the first until 560, the second, long there, until 590."""
    walk = Walk(2, (Step(2), Step(1), Step(1)), size=100, places=3)
    paced = Paced(walk, (10.0, 20.0, 30.0), issued=60.0)
    assert paced.seconds(ROUND, 100) == pytest.approx(590e-9)
    assert paced.bytes == 800


def test_rows_are_held_against_measured_ones():
    """By test, variant, format and sizes; a step whatever its launches; the last run counts."""
    row = Measurement("gpu", "GEMV", variant="generic", format="F16", shape="tokens=1")
    step = Measurement("gpu", "kernels of a step", model="m", settings="context=512,launches=9")
    measured = [
        Measurement("gpu", "GEMV", variant="generic", format="F16", shape="tokens=1", samples=(t,))
        for t in (1.0, 2.0)
    ] + [
        Measurement("gpu", "kernels of a step", model="m", samples=(3.0,),
                    settings="context=512,launches=7"),
        Measurement("op", "GEMV", variant="generic", format="F16", shape="tokens=1",
                    samples=(9.0,)),
    ]  # fmt: skip
    other = Measurement("gpu", "GEMV", variant="generic", format="F16", shape="tokens=2")
    found = [there and there.median for _, there in held_against([row, step, other], measured)]
    assert found == [2.0, 3.0, None]


@NOT_HERE
def test_a_product_of_one_token_keeps_memory_busy():
    """The mended loop, on an H200: where there is room for all warps there is enough on its way."""
    kernel = find_any("linear/cuda/generic/Q4_0")
    case = cases.linear("GEMV", "Q4_0", 1, 4096, 32000)
    row, (launch,) = predict.of_case(gpus()["h200"], kernel, case)
    assert launch.flight > launch.needed
    assert 0.75 < row.share < 1
    assert row.note == "predicted"


@NOT_HERE
def test_eight_tokens_take_little_longer_than_one():
    """What bounds both is reading the weight: instructions of eight leave memory busy."""
    kernel = find_any("linear/cuda/generic/Q4_0")
    one, eight = (
        predict.of_case(gpus()["h200"], kernel, cases.linear("GEMV", "Q4_0", n, 4096, 11008))
        for n in (1, 8)
    )
    assert eight[1][0].limit == "memory"
    assert eight[0].median < 1.2 * one[0].median


@NOT_HERE
def test_attention_of_one_token_keeps_memory_busy():
    """On an H200 at 32,768 cells: pieces are on their way whatever is computed, and merging the
    chunks, whose sums are asked for 32 at a time, takes less than a tenth of it."""
    kernel = find_any("attention/cuda/generic/F16")
    case = cases.attention(read().models["llama-2-7b"], "F16", 32768)
    row, (few, merge) = predict.of_case(gpus()["h200"], kernel, case)
    assert few.flight > few.needed
    assert few.waves <= 1
    assert merge.seconds < few.seconds / 10
    assert 0.78 < row.share < 1


@NOT_HERE
def test_goals_are_told_beside_what_is_predicted(monkeypatch):
    case = cases.linear("GEMV", "Q4_0", 1, 4096, 4096)
    monkeypatch.setattr(predict, "main_cases", lambda model: [case])
    done = shell(command, "--goals")
    assert done.exit_code == 0
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("GEMV Q4_0"))
    assert "unmeasured (not reached); goal >= 75.0%, predicted " in line


@pytest.mark.parametrize("words", [("--gpu", "abacus"), ("--model", "abacus")])
def test_what_there_is_not_is_wrong_usage(words):
    done = shell(command, *words)
    assert done.exit_code == 2
    assert "abacus" in done.output


@NOT_HERE
def test_the_program_tells_rows(monkeypatch):
    """One product, and in place of the step the same once more."""
    case = cases.linear("GEMV", "Q4_0", 1, 4096, 32000)
    monkeypatch.setattr(predict, "main_cases", lambda model: [case])
    monkeypatch.setattr(predict, "of_step", lambda gpu, model, kind: one)
    kernel = find_any("linear/cuda/generic/Q4_0")
    row, (launch,) = predict.of_case(gpus()["h200"], kernel, case)
    one = predict.Prediction(row, 1, launch)
    done = shell(command, "--format", "Q4_0", "--json")
    assert done.exit_code == 0
    first, second = json.loads(done.stdout)
    assert first == second
    assert first["share"] == pytest.approx(first["limit_seconds"] / first["seconds"])
    assert first["measured_seconds"] is None


def test_a_step_is_all_of_its_launches(monkeypatch):
    """Eight kernels a block in 22 blocks, and three behind them, a microsecond each."""
    each = predict.Predicted("x", 1e-6, "memory", 1, 1.0)
    monkeypatch.setattr(predict, "of_kernel", lambda gpu, kernel, shape, work: [each])
    found = predict.of_step(gpus()["h200"], read().models["tinyllama-1.1b"], "Q4_0")
    assert found.launches == 22 * 8 + 3
    assert found.row.median == pytest.approx(179e-6)
    assert found.row.settings == "context=512,launches=179"
    assert found.row.model == "tinyllama-1.1b"
