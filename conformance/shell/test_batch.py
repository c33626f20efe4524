"""assay batch: each answer is the one its prompt has alone, an invalid line fails alone, and an
interrupted run resumes."""

import errno
import fcntl
import json
import os
import signal
import time

import pytest

from conformance.support.child import started
from conformance.support.program import PROGRAM, answer, assay, complaints, fault
from engine.atomic_write import OutputError
from engine.shell.jsonl import Answers

WORDS = ("-n", "8", "--temp", "0", "-t", "1", "-np", "3")
PROMPTS = ["Once upon a time", "Tom and Lily", "The dog", "A bird sat", "Once upon a"]
USER = {"role": "user", "content": "Tell me a story."}


def alone(engine, prompt, **params):
    return answer(engine, prompt, **{"max_tokens": 8, "temperature": 0, **params})


@pytest.fixture
def batch(inside, tmp_path):
    """The result for lines in a file: exit code, stdout, stderr and the answers by id."""
    out = tmp_path / "out.jsonl"

    def run(*lines, words=WORDS):
        file = tmp_path / "in.jsonl"
        file.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
        outcome = inside("batch", "story", file, "-o", out, *words)
        return *outcome, answers(out)

    return run


def answers(out):
    """By id, each there once."""
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    found = {row["id"]: row for row in rows}
    assert len(found) == len(rows)
    return found


def test_answers_are_those_of_each_prompt_alone(batch, story):
    """Answers are by line number; empty lines are skipped."""
    lines = [{"prompt": prompt} for prompt in PROMPTS]
    code, stdout, stderr, found = batch(*lines[:2], "", *lines[2:])
    assert code == 0, stderr
    assert stdout.endswith("out.jsonl: 5 answers\n")
    assert found.keys() == {1, 2, 4, 5, 6}
    for number, prompt in zip((1, 2, 4, 5, 6), PROMPTS, strict=True):
        one = alone(story, prompt)
        assert found[number]["text"] == one.text
        assert found[number]["tokens"] == list(one.outputs[0].token_ids)
        assert found[number]["finish_reason"] == one.outputs[0].finish_reason


def test_kinds_of_lines(batch, story):
    """Messages, tokens, ids, and a line's own parameters."""
    code, _, stderr, found = batch(
        {"id": "talk", "messages": [USER]},
        {"id": 7, "prompt": story.encode("The dog")},
        {"prompt": "The dog", "params": {"temperature": 0.9, "seed": 5, "max_tokens": 3}},
        {"id": "bias", "prompt": "The dog", "params": {"logit_bias": {"10": 50.0}, "logprobs": 1}},
    )
    assert code == 0, stderr
    assert found["talk"]["text"] == alone(story, story.encode_chat([USER])).text
    assert found[7]["text"] == alone(story, "The dog").text
    drawn = alone(story, "The dog", temperature=0.9, seed=5, max_tokens=3)
    assert found[3]["text"] == drawn.text
    assert set(found["bias"]["tokens"]) == {10}
    assert [row["token"] for row in found["bias"]["logprobs"]] == found["bias"]["tokens"]


WRONG = {
    "{": "this is no JSON: ",
    "[1]": "this is no object of JSON",
    '{"prompt": "a", "wings": 2}': "'wings' is unknown: a line has id, messages, params, prompt",
    '{"id": 3}': "want a prompt or messages, one of them",
    '{"prompt": "a", "messages": []}': "want a prompt or messages, one of them",
    '{"prompt": 5}': "prompt is neither a text nor a list of tokens",
    '{"prompt": [99999]}': "99999",
    '{"messages": [{"role": "bird", "content": "a"}]}': "message 0 has role 'bird'",
    '{"prompt": "a", "params": {"top_p": 2}}': "top_p is 2",
    '{"prompt": "a", "params": {"top_p": "x"}}': "top_p",
    '{"prompt": "a", "params": {"wings": 2}}': "params has 'wings'",
    '{"prompt": "a", "params": 5}': "params is no object of JSON",
    '{"prompt": "a", "params": {"logit_bias": {"a": 1}}}': "logit_bias has 'a'",
    '{"prompt": "a", "id": 1.5}': "id is 1.5: want a text or a whole number",
    '{"prompt": "a", "id": "same"}': 'id "same" was there before',
    json.dumps({"prompt": "word " * 600}): "the context holds 512",
    "[" * 100_000: "nested too deeply",
}


def test_a_bad_line_fails_alone(batch, story):
    """Its number and reason are reported; all others are answered, and the exit code is 1."""
    lines = [json.dumps({"prompt": PROMPTS[0], "id": "same"}), *WRONG, '{"prompt": "The dog"}']
    code, _, stderr, found = batch(*lines)
    assert found.keys() == {"same", len(lines)}
    assert found[len(lines)]["text"] == alone(story, "The dog").text
    *told, last = complaints(stderr).splitlines()
    assert code == 1
    assert last.endswith(f"in.jsonl: {len(WRONG)} lines have no answer")
    by_number = {int(line.split(":")[1]): line for line in told}
    for number, why in enumerate(WRONG.values(), start=2):
        assert why in by_number[number], number
    assert len(told) == len(WRONG)


def test_existing_answers_are_not_recomputed(batch, tmp_path):
    """Existing ids stay; a killed program's partial line is dropped."""
    lines = [{"prompt": prompt} for prompt in PROMPTS]
    *_, whole = batch(*lines)
    assert "0 answers, and 5 from before" in batch(*lines)[1]
    out = tmp_path / "out.jsonl"
    rows = out.read_bytes().splitlines(keepends=True)
    for cut in (1, 5, len(rows[3]) - 1):
        out.write_bytes(b"".join(rows[:3]) + rows[3][:cut])
        code, stdout, _, found = batch(*lines)
        assert code == 0
        assert "2 answers, and 3 from before" in stdout
        assert {k: v["text"] for k, v in found.items()} == {k: v["text"] for k, v in whole.items()}


def lines(out):
    return out.read_bytes().count(b"\n") if out.exists() else 0


def wait(program, out, count):
    """Until so many answers are there."""
    while program.poll() is None and lines(out) < count:
        time.sleep(0.002)


def test_a_killed_program_loses_no_answer(tmp_path, story):
    """Killed at any time, it leaves whole lines; the next run completes them, each once."""
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    count = 150
    prompts = [f"{PROMPTS[i % 5]} {i}" for i in range(count)]
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    words = [PROGRAM, "batch", "story", file, "-o", out, *WORDS, "-q"]
    with started(*words) as program:
        wait(program, out, 20)
        program.send_signal(signal.SIGKILL)
        program.wait()
    before = lines(out)
    assert 0 < before < count
    with started(*words) as program:
        wait(program, out, before + 5)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate()
    assert program.returncode == 1
    assert complaints(said) == "assay: interrupted\n"
    with started(*words) as program:
        _, said = program.communicate()
    assert program.returncode == 0, said
    found = answers(out)
    assert found.keys() == set(range(1, count + 1))
    for number in (1, count // 2, count):
        assert found[number]["text"] == alone(story, prompts[number - 1]).text


def test_json_progress(batch):
    code, stdout, _, _ = batch({"prompt": "The dog"}, "{", words=(*WORDS, "--json"))
    found = json.loads(stdout)
    assert code == 1
    assert (found["answered"], found["before"]) == (1, 0)
    assert [row["line"] for row in found["failed"]] == [2]


def test_quiet_prints_nothing(batch):
    assert batch({"prompt": "The dog"}, words=(*WORDS, "-q"))[:3] == (0, "", "")


def test_standard_input(tmp_path, story):
    """Any number of lines, known only at the end."""
    words = ("batch", "story", "-", "-o", tmp_path / "out", *WORDS)
    code, _, stderr = assay(*words, input='{"prompt": "The dog"}\n')
    assert code == 0, stderr
    assert answers(tmp_path / "out")[1]["text"] == alone(story, "The dog").text


def test_invalid_files_are_refused(inside, tmp_path):
    """Nothing is written to a file that has no answers, to the prompts' own, or to one in use; a
    file without prompts is empty."""
    out = tmp_path / "out.jsonl"
    for text in ('{"a": 1}\n', "a diary", '{"id": 1}\n\n'):
        out.write_text(text)
        line = fault(_asked(inside, tmp_path, out))
        assert "is no answer of this command, so nothing is written here" in line
        assert out.read_text() == text
    line = fault(_asked(inside, tmp_path, tmp_path / "in.jsonl"))
    assert "in.jsonl" in line
    out.unlink()
    with out.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another program is writing it" in fault(_asked(inside, tmp_path, out))
    assert "none.jsonl" in fault(inside("batch", "story", tmp_path / "none.jsonl", "-o", out))


def _asked(inside, folder, out):
    file = folder / "in.jsonl"
    file.write_text('{"prompt": "The dog"}\n')
    return inside("batch", "story", file, "-o", out, *WORDS)


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    """A line that does not fit is removed."""
    result = {"text": "b", "tokens": [2], "finish_reason": "stop"}
    path = tmp_path / "out"
    with Answers(path) as found:
        found.append(1, result)
        whole = path.read_bytes()

        def full(fd, data, at):
            if at > len(whole):
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(fd, data[:10], at)

        real = os.pwrite
        monkeypatch.setattr("engine.shell.jsonl.os.pwrite", full)
        with pytest.raises(OutputError, match=r"(?i)no space left"):
            found.append(2, result)
        monkeypatch.undo()
        assert path.read_bytes() == whole
        found.append(2, result)
    assert answers(path).keys() == {1, 2}
