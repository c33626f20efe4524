"""Structured output by options, in every command that generates; errors name the option before a
model is loaded."""

import json
import re
import sys
from dataclasses import replace

import pytest

from conformance.support.program import fault, misuse
from engine import StructuredOutputsParams
from engine.shell.command_line.options import Sampling

PROMPT = "Once upon a time"
MESSAGE = "Tell me a story."
ASKED = ("-n", "60", "--seed", "3", "-t", "1")
CAT = {
    "type": "object",
    "properties": {"cat": {"enum": ["Tom", "Lily"]}, "old": {"type": "boolean"}},
    "required": ["cat", "old"],
    "additionalProperties": False,
}
LETTERS = 'root ::= " " [a-z]+ "."\n'
FORMS = {  # the option with its value, and the same for the engine
    "schema": (("--json-schema", json.dumps(CAT)), {"json": CAT}),
    "-j": (("-j", json.dumps(CAT)), {"json": CAT}),
    "grammar": (("--grammar", LETTERS), {"grammar": LETTERS}),
    "regex": (("--regex", " [A-Z][a-z]{2,5} (sat|ran)"), {"regex": " [A-Z][a-z]{2,5} (sat|ran)"}),
    "choice": (("--choice", " yes", "--choice", " no"), {"choice": [" yes", " no"]}),
}
FILES = {"-jf": "schema", "--json-schema-file": "schema", "--grammar-file": "grammar"}


def expected_answer(engine, prompt, form, seed=3):
    """The engine's answer with the program's defaults."""
    usual = Sampling(max_tokens=60, seed=seed).params()
    asked = StructuredOutputsParams(**form)
    return engine.generate(prompt, replace(usual, structured_outputs=asked)).text


@pytest.mark.parametrize("name", FORMS)
def test_answers_have_the_format(inside, story, name):
    words, form = FORMS[name]
    code, stdout, stderr = inside("run", "story", "-p", PROMPT, *ASKED, "-q", *words)
    assert (code, stderr) == (0, "")
    assert stdout == expected_answer(story, PROMPT, form)
    if "json" in form:
        found = json.loads(stdout)
        assert found["cat"] in ("Tom", "Lily")
        assert type(found["old"]) is bool


@pytest.mark.parametrize("name", FILES)
def test_formats_from_files(inside, story, tmp_path, name):
    (_, text), form = FORMS[FILES[name]]
    (tmp_path / "form").write_text(text)
    asked = ("run", "story", "-p", PROMPT, *ASKED, "-q", name)
    assert inside(*asked, tmp_path / "form") == (0, expected_answer(story, PROMPT, form), "")
    assert f"{tmp_path}/none: cannot be read" in fault(inside(*asked, tmp_path / "none"))
    (tmp_path / "form").write_text("[")
    assert misuse(inside(*asked, tmp_path / "form")).startswith(f"assay: {name}")


def test_formats_in_a_chat(inside, story, tmp_path):
    """The option is first; /set changes the format, reads one from a file, or removes it."""
    (tmp_path / "letters").write_text(LETTERS)
    lines = [
        MESSAGE, "/clear", "/set regex none", "/set choice yes no", MESSAGE, "/clear",
        "/set grammar root ::= foo", "/set choice none", "/set grammar root ::= foo",
        f"/set grammar-file {tmp_path}/letters", "/set grammar-file", MESSAGE,
    ]  # fmt: skip
    words = ("chat", "story", *ASKED, "--json", *FORMS["regex"][0])
    code, stdout, stderr = inside(*words, input="\n".join(lines))
    assert code == 0, stderr
    prompt = story.encode_chat([{"role": "user", "content": MESSAGE}])
    forms = [FORMS["regex"][1], {"choice": ["yes", "no"]}, FORMS["grammar"][1]]
    found = [json.loads(line)["text"] for line in stdout.splitlines()]
    assert found == [expected_answer(story, prompt, form) for form in forms]
    assert "(grammar and --choice exclude each other: an answer has one form)" in stderr
    assert "(grammar: Rule 'foo' not found)" in stderr
    assert 'grammar-file root ::= " " [a-z]+ "."\n' in stderr


def test_formats_in_a_batch(inside, story, tmp_path):
    """All use the option's format, except lines with their own; an error names its line."""
    lines = [
        {"prompt": PROMPT},
        {"prompt": PROMPT, "params": {"structured_outputs": {"choice": [" a", " the"]}}},
        {"prompt": PROMPT, "params": {"structured_outputs": {"wings": 2}}},
        {"prompt": PROMPT, "params": {"structured_outputs": {"grammar": "root ::= foo"}}},
    ]
    (tmp_path / "in").write_text("\n".join(map(json.dumps, lines)))
    asked = ("batch", "story", tmp_path / "in", "-o", tmp_path / "out", *ASKED)
    code, _, stderr = inside(*asked, "-j", json.dumps(CAT))
    assert code == 1
    answers = map(json.loads, (tmp_path / "out").read_text().splitlines())
    texts = {answer["id"]: answer["text"] for answer in answers}
    forms = {1: {"json": CAT}, 2: {"choice": [" a", " the"]}}
    assert texts == {number: expected_answer(story, PROMPT, form) for number, form in forms.items()}
    assert "in:3: params: " in stderr
    assert "'wings'" in stderr
    assert "in:4: the grammar: Rule 'foo' not found" in stderr
    assert "--regex: no text matches it" in misuse(inside(*asked, "--regex", r"[^\s\S]"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("-j", "[1"), "-j is not a JSON schema: Expecting ',' delimiter"),
        (("--json-schema", "3"), "--json-schema is 3: want an object, a schema"),
        (("-j", '{"type": "strin"}'), "-j: Invalid type: strin"),
        (("--grammar", "root ::= foo"), "--grammar: Rule 'foo' not found"),
        (("--grammar", ""), "--grammar: No 'root' rule found"),
        (("--regex", "(a"), "--regex: .*unclosed group"),
        (("--choice", ""), r"--choice is \[''\]: want texts that are not empty"),
        (("--regex", "a", "-j", "{}"), "-j and --regex exclude each other: an answer has one form"),
        (("--regex", "a", "--ignore-eos"), "--ignore-eos and --regex exclude each other"),
    ],
)
def test_invalid_formats_are_refused(inside, words, line):
    """The option as typed, before a model is loaded."""
    told = misuse(inside("run", "none.gguf", "-p", PROMPT, *words))
    assert re.match(f"assay: {line}", told), told


def test_missing_package_names_what_to_install(inside, monkeypatch):
    """One line says what to install."""
    monkeypatch.setitem(sys.modules, "llguidance", None)
    line = fault(inside("run", "none.gguf", "-p", PROMPT, "--choice", "a package"))
    assert line == "--choice needs the package llguidance: pip install 'assay[structured]'"
