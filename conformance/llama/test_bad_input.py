"""Bad input ends in one plain line: through the real program, and through the engine itself."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from conformance.support.child import run, started
from conformance.support.program import DEAF, PROGRAM, Assay, assay, complaints, fault, misuse
from conformance.support.small_models import Small
from engine import Engine, PromptError, SamplingParams
from engine.config import ModelError
from engine.embedded import resolve
from engine.gguf_file import GGUFError
from engine.model import NumericalError
from engine.tokenizer.vocab import TokenizerError
from reference.transformer import Weight

REFUSALS = (GGUFError, ModelError, TokenizerError)
SMALL = Small(blocks=1)
SOON = 2.0  # seconds: one is promised where other tests do not want the cores as well
TRIES = 2  # where others had both cores for seconds it was none of the program's doing


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return SMALL.write(tmp_path_factory.mktemp("bad") / "small.gguf")


# The program


def test_program_continues_a_prompt(model: Path) -> None:
    """`assay run --json` prints tokens, text, why it ended and where the time went."""
    code, stdout, _ = assay("run", model, "-p", "5 6", "-n", 5, "--seed", 1, "--json")
    found = json.loads(stdout)
    assert code == 0
    assert 1 <= len(found["tokens"]) <= 5
    assert found["prompt"] == "5 6"
    assert found["finish_reason"] in ("length", "stop")
    assert found["timings"]["eval"]["tokens"] == len(found["tokens"]) - 1
    assert found["timings"]["load"]["seconds"] > 0


def test_program_tokenizes(model: Path) -> None:
    """`assay tokenize --json` prints ids and pieces, of standard input too."""
    expected = {"ids": [5, 6], "pieces": [" 5", " 6"]}
    code, stdout, _ = assay("tokenize", model, "5 6", "--json")
    assert (code, json.loads(stdout)) == (0, expected)
    code, stdout, _ = assay("tokenize", model, "--json", stdin=None, input="5 6")
    assert (code, json.loads(stdout)) == (0, expected)


def test_program_runs_one_op() -> None:
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


def test_program_refuses_files(model: Path, tmp_path: Path) -> None:
    """A missing file, random bytes and a truncated model are one line each that names the file."""
    noise, cut = tmp_path / "noise.gguf", tmp_path / "cut.gguf"
    noise.write_bytes(np.random.default_rng(0).bytes(5000))
    cut.write_bytes(model.read_bytes()[:30_000])
    for path, words in ((tmp_path / "none.gguf", "no such file"), (noise, "not a GGUF file"),
                        (cut, "the file ends within")):  # fmt: skip
        line = fault(assay("run", path, "-p", "5"))
        assert line.startswith(f"{path}: ")
        assert words in line


def test_program_is_interrupted(tmp_path: Path) -> None:
    """Ctrl-C in the midst of a generation ends the program at once, with exit status 1."""
    path = Small(format="Q4_0", context=4096).write(tmp_path / "small.gguf")
    arguments = [PROGRAM, "run", path, "-p", "5 6", "-n", "-1", "--ignore-eos", "--context-shift"]
    with started(*arguments) as program:
        assert program.stdout is not None
        assert program.stdout.read(20)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=30)
        assert complaints(said) == "assay: interrupted\n"
        assert program.returncode == 1


def test_an_interruption_that_python_calls_an_error(monkeypatch, capsys) -> None:
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
def test_program_is_interrupted_while_it_compiles(tmp_path, command, after) -> None:
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


def test_program_started_where_interrupts_are_ignored(model: Path) -> None:
    """As nohup and a shell's `&` start it: it goes on to its end."""
    arguments = [*DEAF, PROGRAM, "run", model, "-p", "5 6", "-n", "100", "--ignore-eos"]
    with started(*arguments) as program:
        assert program.stdout is not None
        assert program.stdout.read(1)
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=60)
        assert program.returncode == 0


def test_program_whose_reader_leaves(model: Path) -> None:
    """A closed pipe ends the program without a complaint."""
    arguments = [PROGRAM, "run", model, "-p", "5 6", "-n", "100", "--ignore-eos"]
    with started(*arguments) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.close()
        assert "Traceback" not in program.stderr.read()
        assert program.wait(timeout=60) in (0, 1)


def test_program_bounds_its_memory(tmp_path: Path) -> None:
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
        (["--temp", "-1"], "temperature is -1.0: want a number from 0 to 1e+06"),
        (["--top-p", "1.5"], "top_p is 1.5: want a number from 0 to 1, but not 0"),
        (["--seed", "-3"], "seed is -3"),
        (["-n", "0"], "max_tokens is 0"),
        (["-t", "300"], "threads must be 0 to 256, got 300"),
        (["-b", "0"], "batch must be at least 1, got 0"),
        (["-c", "-5"], "context must be at least 0, got -5"),
        (["--kv", "Q9"], "kv_format is 'Q9': want"),
        (["--numerics", "quick"], "numerics is 'quick': want exact or fast"),
        (["-c", "2"], "the prompt has 4 tokens, the context holds 2"),
        (["--keep", "500"], "keep must be 0 to 127, got 500"),
        (["-c", "99999999999999"], "context must be at most 16777216, got 99999999999999"),
    ],
)
def test_wrong_options(inside: Assay, model: Path, arguments: list[str], message: str) -> None:
    """An option out of range is one line that says what was got and what is wanted."""
    assert message in fault(inside("run", model, "-p", "5 6 7", *arguments))


def test_wrong_usage(inside: Assay, model: Path, tmp_path: Path) -> None:
    """What the option parser refuses ends with exit status 2 and no traceback."""
    assert "No such command" in misuse(inside("fly"))
    assert "No such option" in misuse(inside("run", model, "--wings"))
    assert "Missing argument" in misuse(inside("run"))
    assert "not both" in misuse(inside("run", model, "-p", "5", "-f", tmp_path / "prompt.txt"))
    assert "--shape wants axis=size" in misuse(inside("op", "linear", "--shape", "tokens=x"))
    assert "'-n'" in misuse(inside("run", model, "-n", "many"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["levitate"], "there is no op 'levitate'"),
        (["linear", "--shape", "wings=2"], "linear has no axis 'wings'"),
        (["linear", "--format", "Q9_9"], "linear has no format 'Q9_9'"),
        (["linear", "--values", "odd"], "linear has no values 'odd'"),
        (["linear", "--variant", "fast"], "no variant 'fast'"),
        (["softmax", "--threads", "999"], "threads: want 1 to 256, got 999"),
    ],
)
def test_wrong_ops(inside: Assay, arguments: list[str], message: str) -> None:
    """An op, axis, format, kind of values or variant that does not exist is named."""
    assert message in fault(inside("op", *arguments))


def test_wrong_prompts(inside: Assay, model: Path, tmp_path: Path) -> None:
    """A prompt file that is missing, a directory or no UTF-8 is one line that names it."""
    prompt = tmp_path / "prompt.txt"
    assert "No such file" in fault(inside("run", model, "-f", prompt))
    assert "directory" in fault(inside("run", model, "-f", tmp_path))
    prompt.write_bytes(b"5 6 \xff")
    assert fault(inside("run", model, "-f", prompt)) == f"{prompt}: byte 4 is not valid UTF-8"


@pytest.mark.parametrize("command", ["run", "tokenize", "plan"])
def test_wrong_models(inside: Assay, command: str, tmp_path: Path) -> None:
    """Every command that reads a model refuses a directory and an empty file alike."""
    rest = {"run": ["-p", "5"], "tokenize": ["5"], "plan": []}[command]
    empty = tmp_path / "empty.gguf"
    empty.touch()
    assert fault(inside(command, tmp_path, *rest)) == f"{tmp_path}: this is not a file"
    assert fault(inside(command, empty, *rest)) == f"{empty}: the file is empty"


# The engine


class Tampered(Small):
    """A model whose tensors another hand has changed."""

    def tensors(self) -> Any:
        weights, norms = super().tensors()
        return TAMPERINGS[self.seed][0](dict(weights), dict(norms))


def without(name: str) -> Callable[..., Any]:
    return lambda weights, norms: ({k: v for k, v in weights.items() if k != name}, norms)


def with_weight(name: str, weight: Weight) -> Callable[..., Any]:
    return lambda weights, norms: (weights | {name: weight}, norms)


def with_norm(name: str, values: Any) -> Callable[..., Any]:
    return lambda weights, norms: (weights, norms | {name: values})


FLOATS = Weight(np.zeros((96, 64 * 4), np.uint8), "F32")
TAMPERINGS: list[tuple[Callable[..., Any], str]] = [
    (without("blk.0.attn_q.weight"), "tensor blk.0.attn_q.weight is missing"),
    (without("token_embd.weight"), "tensor token_embd.weight is missing"),
    (with_weight("blk.0.attn_q.weight", FLOATS),
     "tensor blk.0.attn_q.weight is [96, 64], not [64, 64]"),
    (with_norm("output_norm.weight", np.ones(63, np.float32)),
     "tensor output_norm.weight is [63], not [64]"),
    (with_norm("output_norm.weight", np.ones((1, 64), np.float32)),
     "tensor output_norm.weight is [1, 64], not [64]"),
    (lambda weights, norms: ({k: w for k, w in weights.items() if "embd" not in k},
                             norms | {"token_embd.weight": np.ones(64, np.float32)}),
     "tensor token_embd.weight is [64], not [0, 64]"),
    (with_norm("blk.0.attn_norm.weight", np.ones(64, np.float64)),
     "tensor blk.0.attn_norm.weight is in F64; formats that run:"),
    (with_weight("blk.0.ffn_up.weight", Weight(np.zeros((96, 80), np.uint8), "Q8_1")),
     "tensor blk.0.ffn_up.weight is in Q8_1; formats that run:"),
    (with_norm("blk.0.attn_q.bias", np.ones(3, np.float32)),
     "tensor blk.0.attn_q.bias is [3], not [64]"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(TAMPERINGS)), ids=[m for _, m in TAMPERINGS])
def test_tampered_tensors(number: int, tmp_path: Path) -> None:
    """A tensor that is missing, or of a wrong shape or type, is named with what was expected."""
    message = TAMPERINGS[number][1]
    values = {f: getattr(SMALL, f) for f in SMALL.__dataclass_fields__}
    path = Tampered(**{**values, "seed": number}).write(tmp_path / "tampered.gguf")
    with pytest.raises(ModelError) as caught:
        Engine.load(path, threads=1)
    assert str(caught.value).isprintable()
    assert message in str(caught.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["blk.0.ffn_down.weight", "token_embd.weight"])
def test_weights_that_are_no_numbers(bad: float, name: str, tmp_path: Path) -> None:
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
            list(engine.generate([5, 6], SamplingParams(max_tokens=4)))
        with pytest.raises(NumericalError):
            engine.logits([5, 6])


def test_every_truncation(tmp_path: Path) -> None:
    """A model cut off at any 97th byte is refused, and leaves nothing open."""
    path = SMALL.write(tmp_path / "cut.gguf")
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    for size in reversed(range(0, path.stat().st_size - 32, 97)):
        os.truncate(path, size)
        with pytest.raises(REFUSALS) as caught:
            Engine.load(path, threads=1)
        assert str(caught.value).isprintable()
    assert len(list(Path("/proc/self/fd").iterdir())) == open_files


def refusal(path: Path) -> str:
    """Why a model does not load, or nothing: then it speaks, or says that its numbers are none."""
    try:
        engine = Engine.load(path, threads=1, context=16, batch=4)
    except REFUSALS as error:
        return str(error)
    with engine, contextlib.suppress(NumericalError, PromptError):
        list(engine.generate([3, 4, 5], SamplingParams(max_tokens=2)))
    return ""


@pytest.mark.parametrize("part", ["header", "data"])
def test_mutants(part: str, tmp_path: Path) -> None:
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
        lines.append(refusal(path))
    assert all(line.isprintable() for line in lines)
    refused = sum(map(bool, lines))
    assert refused == 0 if part == "data" else 0 < refused < count
