"""llama.cpp's options have its meaning, or an error names the replacement."""

import json
import re
from dataclasses import fields

import pytest

from conformance.support.program import printed, said
from engine import SamplingParams
from engine.shell.command_line.options import Sampling
from engine.shell.command_line.words import InsteadError, Spelling, foreign_options, understood

PROMPT = "Once upon a time"
ASKED = ("run", "story", "-p", PROMPT, "-t", "1", "--json")
KNOWN = {
    "--top-k": Spelling("--top-k", True), "-n": Spelling("--predict", True),
    "--n-predict": Spelling("--predict", True), "-q": Spelling("--quiet", False),
    "-m": Spelling("MODEL", True), "-t": Spelling("--threads", True),
}  # fmt: skip


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("a --top-k 5 -q", "a --top-k 5 -q"),
        ("a --top-k=5", "a --top-k 5"),
        ("a --n-predict -1", "a --predict -1"),
        ("a -n5", "a --predict 5"),
        ("-t 2 -m a", "a --threads 2"),
        ("-n 2 -- -n", "--predict 2 -- -n"),
        ("a --wings 3", "a --wings 3"),
        ("a --mlock -fa on -q", "a -q"),
        ("a -fa -q --numa distribute", "a -q"),
    ],
)
def test_llama_cpp_options_are_translated(words, line):
    found = understood(words.split(), KNOWN)
    given = ["--quiet" if word == "-q" else word for word in line.split()]
    assert found.words == given


def test_options_are_quoted_as_typed():
    """The message quotes the option as it was typed, and options without effect are named, too."""
    found = understood(["a", "-n", "3", "--n-predict=4", "--mlock"], KNOWN)
    assert found.typed == {"--predict": [("-n", "3"), ("--n-predict", "4")]}
    assert found.notes == [f"--mlock changes nothing here: {foreign_options()['--mlock'].about}"]


def test_unsupported_options_name_the_alternative():
    """Each refused option of the table, with one line."""
    refused = [name for name, option in foreign_options().items() if option.refused]
    assert len(refused) > 150
    for name in refused:
        with pytest.raises(InsteadError, match=rf"^{name} is an option of llama.cpp; here: .+"):
            understood([name, "1"], {})


@pytest.mark.parametrize(
    ("words", "params"),
    [
        ("--n-predict 9 --temperature 0 --ctx-size 64", {"max_tokens": 9, "temperature": 0}),
        ("-n 9 --temp 0 -fa on --mlock --no-mmap", {"max_tokens": 9, "temperature": 0}),
        ("--predict 9 -s 4 --repeat-last-n 8 --repeat-penalty 1.5",
         {"max_tokens": 9, "seed": 4, "penalty_last_n": 8, "repetition_penalty": 1.5}),
        ("-n 9 --seed 4 --typical 0.7 --dynatemp-range 0.5 --dynatemp-exp 2",
         {"max_tokens": 9, "seed": 4, "typical_p": 0.7, "dynatemp_range": 0.5,
          "dynatemp_exponent": 2.0}),
        ("-n 9 --seed 4 --mirostat 2 --mirostat-ent 3 --mirostat-lr 0.2",
         {"max_tokens": 9, "seed": 4, "mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.2}),
        ("-n 9 --seed 4 --xtc-probability 1 --xtc-threshold 0.05 --top-nsigma 2",
         {"max_tokens": 9, "seed": 4, "xtc_probability": 1.0, "xtc_threshold": 0.05,
          "top_n_sigma": 2.0}),
        ("-n 9 --seed 4 --dry-multiplier 2 --dry-base 2 --dry-allowed-length 1"
         " --dry-penalty-last-n -1 --dry-sequence-breaker none",
         {"max_tokens": 9, "seed": 4, "dry_multiplier": 2.0, "dry_base": 2.0,
          "dry_allowed_length": 1, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["none"]}),
        ("-n 9 --temp 0 -l 10-inf -l 12+5", {"max_tokens": 9, "temperature": 0,
                                            "logit_bias": ["10-inf", "12+5"]}),
        ("-n 9 --seed 4 --temp 1.5 --order vllm",
         {"max_tokens": 9, "seed": 4, "temperature": 1.5, "order": "vllm"}),
        ("-n 60 --temp 0 -r .", {"max_tokens": 60, "temperature": 0, "stop": ["."]}),
        ("-n 9 -ctk f32 -ctv f32 -b 32 -ub 16 --temp 0", {"max_tokens": 9, "temperature": 0}),
    ],
)  # fmt: skip
def test_llama_cpps_option_names(inside, story, words, params):
    """The text is the engine's with the corresponding parameters."""
    stdout = printed(inside(*ASKED, *words.split()))
    assert json.loads(stdout)["text"] == said(story, PROMPT, **params)


def test_every_sampler_is_reachable():
    """Every field of SamplingParams for one text from the model's own logits has an option."""
    python = {  # what is of Python only: objects, or of several texts at once
        "n", "logits_processors", "detokenize", "prompt_logprobs", "min_tokens", "stop_token_ids",
        "include_stop_str_in_output", "skip_special_tokens", "truncate_prompt_tokens",
        "allowed_token_ids", "bad_words", "spaces_between_special_tokens",
        "structured_outputs",  # options of several kinds: test_forms.py
    }  # fmt: skip
    missing = {f.name for f in fields(SamplingParams)} - {f.name for f in fields(Sampling)}
    assert missing <= python


def test_n_predict(inside, story):
    """0 is none, -1 without limit, and -2 as many as the context has, shifted or not."""
    ends = json.loads(inside(*ASKED, "-n", "0")[1])
    assert (ends["text"], ends["tokens"]) == ("", [])
    asked = (*ASKED, "--temp", "0", "-c", "32", "--ignore-eos")
    full = json.loads(inside(*asked, "-n", "-1")[1])
    assert full["finish_reason"] == "length"
    again = json.loads(inside(*asked, "-n", "-2", "--context-shift")[1])
    assert again["tokens"] == full["tokens"]
    assert len(full["tokens"]) == 32 - len(story.encode(PROMPT)) + 1


def test_seed_minus_one_is_random(inside):
    texts = {inside(*ASKED, "-n", "30", "--seed", "-1")[1].split('"timings"')[0] for _ in range(3)}
    assert len(texts) > 1


@pytest.mark.parametrize("words", [("-f", "-"), ("-f", "FILE"), ()])
def test_a_prompt_from_a_file(inside, story, tmp_path, words):
    """is standard input, and so is no file; the last newline is removed."""
    (tmp_path / "prompt").write_text(PROMPT + "\n")
    words = [str(tmp_path / "prompt") if word == "FILE" else word for word in words]
    asked = ("run", "-m", "story", *words, "-n", "5", "--temp", "0", "--json")
    found = json.loads(inside(*asked, input=f"{PROMPT}\n")[1])
    assert found["prompt"] == PROMPT
    assert found["text"] == said(story, PROMPT, max_tokens=5, temperature=0)


@pytest.mark.parametrize(
    ("words", "prompt"),
    [
        ((), "Once\nupon a\x41"), (("-e",), "Once\nupon a\x41"),
        (("--no-escape",), r"Once\nupon a\x41"),
    ],
)  # fmt: skip
def test_escapes(inside, words, prompt):
    """They are processed as in llama.cpp unless switched off."""
    given = ("run", "story", "-p", r"Once\nupon a\x41", "-n", "1", "--json", *words)
    assert json.loads(inside(*given)[1])["prompt"] == prompt


def test_display_prompt_and_quiet(inside, story):
    text = said(story, PROMPT, max_tokens=5, temperature=0)
    asked = ("run", "story", "-p", PROMPT, "-n", "5", "--temp", "0")
    assert inside(*asked)[1] == PROMPT + text
    _, stdout, stderr = inside(*asked, "--no-display-prompt")
    assert stdout == text
    assert "total time" in stderr
    assert inside(*asked, "-q", "--mlock") == (0, text, "")
    assert "--mlock changes nothing here" in inside(*asked, "--mlock")[2]


def test_logprobs(inside):
    """The likeliest tokens at each position, the first of which is sampled at temperature 0."""
    found = json.loads(inside(*ASKED, "-n", "4", "--temp", "0", "--logprobs", "2")[1])
    for token, row in zip(found["tokens"], found["logprobs"], strict=True):
        assert row["top"][0] == [token, row["logprob"]]
        assert len(row["top"]) == 2


def test_a_run_as_json(inside):
    """Tokens, text, finish reason and timings."""
    found = json.loads(printed(inside(*ASKED, "-n", "5", "--seed", "1")))
    assert 1 <= len(found["tokens"]) <= 5
    assert found["prompt"] == PROMPT
    assert found["finish_reason"] in ("length", "stop")
    assert found["timings"]["eval"]["tokens"] == len(found["tokens"]) - 1
    assert found["timings"]["load"]["seconds"] > 0


def test_tokens_as_json(inside, story):
    """Ids and pieces, for standard input too."""
    ids = story.tokenizer.encode(PROMPT, add_special=False)
    expected = {"ids": ids, "pieces": [story.tokenizer.piece(token) for token in ids]}
    for words in ((PROMPT,), ()):
        told = printed(inside("tokenize", "story", *words, "--json", input=PROMPT))
        assert json.loads(told) == expected


def test_one_op_as_json(inside):
    """Each kernel's error against its bound, its time and its rates."""
    shape = "tokens=1,hidden=256,out=512"
    words = ("op", "linear", "--format", "Q4_0", "--shape", shape, "--all", "--json")
    rows = json.loads(printed(inside(*words)))
    assert {row["kernel"].split("/")[-1] for row in rows} == {"Q4_0"}
    assert len(rows) >= 2
    for row in rows:
        assert row["passed"]
        assert 0 <= row["error_over_bound"] <= 1
        assert row["nmse"] < 1e-3
        assert min(row["seconds"], row["gb_per_second"], row["gflop_per_second"]) > 0
        assert row["shape"] == {"tokens": 1, "hidden": 256, "out": 512}


def test_tables_have_no_boxes_in_a_pipe(inside):
    """A row is a line with all of its cells."""
    stdout = printed(inside("ops"))
    rows = stdout.splitlines()
    assert not re.search(r"[│┃─━┏└]", stdout)
    assert all(row.split()[0].isidentifier() for row in rows)
    assert any(row.startswith("linear ") and "cpu/generic" in row for row in rows)
