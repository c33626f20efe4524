"""Bad input ends in one plain line: through the real program, and through the engine itself."""

import contextlib
import json
import os
import signal
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from conformance.support.child import python, run, started
from conformance.support.program import DEAF, PROGRAM, assay, complaints, fault, misuse
from conformance.support.refusals import refusal
from conformance.support.small_models import Small, tampered
from engine import Engine, PromptError, SamplingParams
from engine.config import ModelError
from engine.embedded import resolve
from engine.gguf.file import GGUFError
from engine.model import NumericalError
from engine.tokenizer.vocab import TokenizerError
from reference.transformer import Weight

REFUSALS = (GGUFError, ModelError, TokenizerError)
SMALL = Small(blocks=1)
SOON = 2.0  # seconds: one is promised where other tests do not want the cores as well
TRIES = 2  # where others had both cores for seconds it was none of the program's doing


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return SMALL.write(tmp_path_factory.mktemp("bad") / "small.gguf")


# The program


def test_program_continues_a_prompt(model):
    """`assay run --json` prints tokens, text, why it ended and where the time went."""
    code, stdout, _ = assay("run", model, "-p", "5 6", "-n", 5, "--seed", 1, "--json")
    found = json.loads(stdout)
    assert code == 0
    assert 1 <= len(found["tokens"]) <= 5
    assert found["prompt"] == "5 6"
    assert found["finish_reason"] in ("length", "stop")
    assert found["timings"]["eval"]["tokens"] == len(found["tokens"]) - 1
    assert found["timings"]["load"]["seconds"] > 0


def test_program_tokenizes(model):
    """`assay tokenize --json` prints ids and pieces, of standard input too."""
    expected = {"ids": [5, 6], "pieces": [" 5", " 6"]}
    code, stdout, _ = assay("tokenize", model, "5 6", "--json")
    assert (code, json.loads(stdout)) == (0, expected)
    code, stdout, _ = assay("tokenize", model, "--json", stdin=None, input="5 6")
    assert (code, json.loads(stdout)) == (0, expected)


def test_program_runs_one_op():
    """`assay op` prints each kernel's error against its bound, its time and its rates."""
    shape = "tokens=1,hidden=256,out=512"
    code, stdout, _ = assay("op", "linear", "--format", "Q4_0", "--shape", shape, "--all", "--json")
    rows = json.loads(stdout)
    assert code == 0
    assert {row["kernel"].split("/")[-1] for row in rows} == {"Q4_0"}
    assert len(rows) >= 2
    for row in rows:
        assert row["passed"]
        assert 0 <= row["error_over_bound"] <= 1
        assert row["nmse"] < 1e-3
        assert min(row["seconds"], row["gb_per_second"], row["gflop_per_second"]) > 0
        assert row["shape"] == {"tokens": 1, "hidden": 256, "out": 512}


def test_program_is_interrupted(tmp_path):
    """Ctrl-C in the midst of a generation ends the program at once, with exit status 1."""
    path = Small(format="Q4_0", context=4096).write(tmp_path / "small.gguf")
    arguments = [PROGRAM, "run", path, "-p", "5 6", "-n", "-1", "--ignore-eos", "--context-shift"]
    with started(*arguments) as program:
        assert program.stdout.read(20)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=30)
        assert complaints(said) == "assay: interrupted\n"
        assert program.returncode == 1


def test_an_interruption_that_python_calls_an_error(monkeypatch, capsys):
    """Ctrl-C while a class is made is a RuntimeError in Python 3.11, and is told as what it is."""

    def interrupted() -> None:
        raise RuntimeError("Error calling __set_name__ on 'Field'") from KeyboardInterrupt()

    program = import_module("engine.shell.main")
    monkeypatch.setattr(program, "_open_missing", interrupted)
    with pytest.raises(SystemExit, match="1"):
        program.main()
    assert capsys.readouterr().err == "assay: interrupted\n"


@pytest.mark.parametrize("command", ["run", "certify"])
@pytest.mark.parametrize("after", [0.3, 1.2, 2.5, 4.0])
def test_program_is_interrupted_while_it_compiles(tmp_path, command, after):
    """Ctrl-C, which a terminal sends to children too, ends the program soon and with one line: the
    compiler has nothing to say."""
    model = [resolve("story"), "-p", "5 6"] if command == "run" else ["--op", "attention"]
    took = []
    while not took or (took[-1] >= SOON and len(took) < TRIES):
        kept = {**os.environ, "ASSAY_CACHE": str(tmp_path / f"{len(took)} kept")}
        with started(PROGRAM, command, *model, env=kept, start_new_session=True) as program:
            time.sleep(after)
            began = time.monotonic()
            os.killpg(program.pid, signal.SIGINT)
            _, said = program.communicate(timeout=30)
        took.append(time.monotonic() - began)
        assert complaints(said) == "assay: interrupted\n"
        assert program.returncode == 1
    assert took[-1] < SOON


DESTROYED = """
import os, signal, time
from assay.__main__ import _interrupt_again

class Interrupted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)

_interrupt_again()
try:
    Interrupted()
    time.sleep(30)
except KeyboardInterrupt:
    print("heeded")
"""


def test_an_interruption_in_a_destructor_comes_again():
    """Python drops what is raised there."""
    done = python(DESTROYED, timeout=20)
    assert (done.stdout, done.stderr) == ("heeded\n", "")


def test_program_started_where_interrupts_are_ignored(model):
    """As nohup and a shell's `&` start it: it goes on to its end."""
    arguments = [*DEAF, PROGRAM, "run", model, "-p", "5 6", "-n", "100", "--ignore-eos"]
    with started(*arguments) as program:
        assert program.stdout.read(1)
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
        assert program.returncode == 0


def test_program_whose_reader_leaves(model):
    """A closed pipe ends the program without a complaint."""
    arguments = [PROGRAM, "run", model, "-p", "5 6", "-n", "100", "--ignore-eos"]
    with started(*arguments) as program:
        program.stdout.close()
        assert "Traceback" not in program.stderr.read()
        assert program.wait(timeout=60) in (0, 1)


def test_program_bounds_its_memory(tmp_path):
    """A file that claims two billion blocks is refused within seconds and little memory."""
    path = tmp_path / "vast.gguf"
    SMALL.write(path, block_count=2**31 - 1)
    limit = f"ulimit -v {4 * 2**20}; exec {PROGRAM} run {path} -p 5"
    done = run("sh", "-c", limit, timeout=60)
    assert "block_count" in fault((done.returncode, done.stdout, done.stderr))


# The program, in this process


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temp", "-1"], "--temp is -1.0: want a number from 0 to 1e+06"),
        (["--top-p", "1.5"], "--top-p is 1.5: want a number from 0 to 1, but not 0"),
        (["--seed", "-3"], "--seed is -3"),
        (["-n", "-3"], "-n is -3: want a number from 0 up, -1 or -2"),
        (["-t", "300"], "-t must be 0 to 256, got 300"),
        (["-b", "0"], "-b must be at least 1, got 0"),
        (["-c", "-5"], "-c must be at least 0, got -5"),
        (["--kv", "Q9"], "--kv is 'Q9': want"),
        (["--numerics", "quick"], "--numerics is 'quick': want exact or fast"),
        (["-c", "99999999999999"], "-c must be at most 16777216, got 99999999999999"),
    ],
)
def test_wrong_options(inside, model, arguments, message):
    """An option out of range is wrong usage, and one line says what was got and what is wanted, by
    the name that was typed."""
    assert message in misuse(inside("run", model, "-p", "5 6 7", *arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", "2"], "the prompt has 4 tokens, the context holds 2"),
        (["--keep", "500"], "--keep must be 0 to 127, got 500"),
    ],
)
def test_options_that_a_model_refuses(inside, model, arguments, message):
    """What only the model shows to be too much is no wrong usage, and one line."""
    assert message in fault(inside("run", model, "-p", "5 6 7", *arguments))


def test_wrong_usage(inside, model, tmp_path):
    """What the option parser refuses ends with exit status 2 and no traceback."""
    assert "No such command" in misuse(inside("fly"))
    assert "No such option" in misuse(inside("run", model, "--wings"))
    assert "Missing argument" in misuse(inside("run"))
    assert "not both" in misuse(inside("run", model, "-p", "5", "-f", tmp_path / "prompt.txt"))
    assert "--shape wants axis=size" in misuse(inside("op", "linear", "--shape", "tokens=x"))
    assert "-n is 'many': " in misuse(inside("run", model, "-n", "many"))
    assert "threads: want 1 to 256" in fault(inside("op", "softmax", "--threads", "999"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["levitate"], "there is no op 'levitate'"),
        (["linear", "--shape", "wings=2"], "linear has no axis 'wings'"),
        (["linear", "--format", "Q9_9"], "linear has no format 'Q9_9'"),
        (["linear", "--values", "odd"], "linear has no values 'odd'"),
        (["linear", "--variant", "fast"], "no variant 'fast'"),
    ],
)
def test_wrong_ops(inside, arguments, message):
    """An op, axis, format, kind of values or variant that does not exist is named."""
    assert message in misuse(inside("op", *arguments))


def test_wrong_prompts(inside, model, tmp_path):
    """A prompt file that is missing, a directory or no UTF-8 is one line that names it."""
    prompt = tmp_path / "prompt.txt"
    assert "No such file" in fault(inside("run", model, "-f", prompt))
    assert "directory" in fault(inside("run", model, "-f", tmp_path))
    prompt.write_bytes(b"5 6 \xff")
    assert fault(inside("run", model, "-f", prompt)) == f"{prompt}: byte 4 is not valid UTF-8"


@pytest.mark.parametrize("command", ["run", "tokenize", "plan"])
def test_wrong_models(inside, command, tmp_path):
    """Every command that reads a model refuses a directory and an empty file alike."""
    rest = {"run": ["-p", "5"], "tokenize": ["5"], "plan": []}[command]
    empty = tmp_path / "empty.gguf"
    empty.touch()
    assert fault(inside(command, tmp_path, *rest)) == f"{tmp_path}: this is not a file"
    assert fault(inside(command, empty, *rest)) == f"{empty}: the file is empty"


# The engine


ONES = np.ones(64, np.float32)
TAMPERINGS: dict[str, dict[str, Any]] = {
    "tensor blk.0.attn_q.weight is missing": {"blk.0.attn_q.weight": None},
    "tensor token_embd.weight is missing": {"token_embd.weight": None},
    "tensor blk.0.attn_q.weight is [96, 64], not [64, 64]": {
        "blk.0.attn_q.weight": Weight(np.zeros((96, 64 * 4), np.uint8), "F32")
    },
    "tensor output_norm.weight is [63], not [64]": {"output_norm.weight": ONES[1:]},
    "tensor output_norm.weight is [1, 64], not [64]": {"output_norm.weight": ONES[None]},
    "tensor token_embd.weight is [64], not [0, 64]": {"token_embd.weight": ONES},
    "tensor blk.0.attn_norm.weight is in F64; formats that run:": {
        "blk.0.attn_norm.weight": ONES.astype(np.float64)
    },
    "tensor blk.0.ffn_up.weight is in Q8_1; formats that run:": {
        "blk.0.ffn_up.weight": Weight(np.zeros((96, 80), np.uint8), "Q8_1")
    },
    "tensor blk.0.attn_q.bias is [3], not [64]": {"blk.0.attn_q.bias": ONES[:3]},
}


@pytest.mark.parametrize("message", TAMPERINGS)
def test_tampered_tensors(message, tmp_path):
    """A tensor that is missing, or of a wrong shape or type, is named with what was expected."""
    path = tampered(SMALL, TAMPERINGS[message]).write(tmp_path / "tampered.gguf")
    line = refusal(ModelError, path, Engine.load, path, threads=1)
    assert message in line


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["blk.0.ffn_down.weight", "token_embd.weight"])
def test_weights_that_are_no_numbers(bad, name, tmp_path):
    """NaN or infinity in a weight is said when it reaches the logits, and draws no token."""
    path = SMALL.write(tmp_path / "bad.gguf")
    info = gguf.GGUFReader(path)
    (tensor,) = [t for t in info.tensors if t.name == name]
    data = bytearray(path.read_bytes())
    at = int(tensor.data_offset) + 5 * 64 * 4
    data[at : at + 4] = np.float32(bad).tobytes()
    path.write_bytes(data)
    with Engine.load(path, threads=1) as engine:
        with pytest.raises(NumericalError, match=r"logits are not finite .* NaN or infinity"):
            list(engine.stream([5, 6], SamplingParams(max_tokens=4)))
        with pytest.raises(NumericalError):
            engine.logits([5, 6])


def test_every_truncation(tmp_path):
    """A model cut off at any 97th byte is refused, and leaves nothing open."""
    path = SMALL.write(tmp_path / "cut.gguf")
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    for size in reversed(range(0, path.stat().st_size - 32, 97)):
        os.truncate(path, size)
        with pytest.raises(REFUSALS) as caught:
            Engine.load(path, threads=1)
        assert str(caught.value).isprintable()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


def why_not(path: Path) -> str:
    """Why a model does not load, or nothing: then it speaks, or says that its numbers are none."""
    try:
        engine = Engine.load(path, threads=1, context=16, batch=4)
    except REFUSALS as error:
        return str(error)
    with engine, contextlib.suppress(NumericalError, PromptError):
        list(engine.stream([3, 4, 5], SamplingParams(max_tokens=2)))
    return ""


@pytest.mark.parametrize("part", ["header", "data"])
def test_mutants(part, tmp_path):
    """A model with wrong bytes loads or is refused in one line; wrong weights always load."""
    path = replace(SMALL, format="Q4_0").write(tmp_path / "mutant.gguf")
    whole = path.read_bytes()
    data = min(int(t.data_offset) for t in gguf.GGUFReader(path).tensors)
    begin, end = (0, data) if part == "header" else (data, len(whole))
    rng = np.random.default_rng(1)
    lines = []
    count = 300 if part == "header" else 40
    for _ in range(count):
        mutant = bytearray(whole)
        for at in rng.integers(begin, end, rng.integers(1, 4)):
            mutant[at] = rng.integers(256)
        path.write_bytes(mutant)
        lines.append(why_not(path))
    assert all(line.isprintable() for line in lines)
    refused = sum(map(bool, lines))
    assert refused == 0 if part == "data" else 0 < refused < count
