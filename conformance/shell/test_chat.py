"""assay chat with standard input that is no terminal: every line is a message or a command."""

import json

import pytest

from conformance.support.models.small_models import Small
from conformance.support.program import fault, printed, said
from engine.chat_templates import TEMPLATES
from engine.shell.talk.slash import COMMANDS

SHORT = ("-n", "6", "--seed", "3", "-t", "1")
USER = {"role": "user", "content": "Tell me a story."}


@pytest.fixture
def chat(inside):
    """The result for lines on standard input: exit code, stdout and stderr."""

    def talk(*lines, words=SHORT, model="story"):
        return inside("chat", model, *words, input="".join(f"{line}\n" for line in lines))

    return talk


@pytest.fixture
def answers_as_json(chat):
    """The answers as JSON."""

    def talk(*lines, words=SHORT):
        stdout = printed(chat(*lines, words=(*words, "--json")))
        return [json.loads(line) for line in stdout.splitlines()]

    return talk


def answer(engine, *messages, seed=3, template=None, **more):
    return said(engine, engine.encode_chat(messages, template), max_tokens=6, seed=seed, **more)


def test_answers_equal_the_engines(answers_as_json, story):
    """Each question is answered with the whole history; an empty line is ignored."""
    first, second = answers_as_json("Tell me a story.", "", "   ", "And then?")
    assert first["message"] == "Tell me a story."
    assert first["text"] == answer(story, USER)
    said = {"role": "assistant", "content": first["text"]}
    then = {"role": "user", "content": "And then?"}
    assert second["text"] == answer(story, USER, said, then)


def test_retry_undo_and_clear(answers_as_json, story):
    """/retry answers with the next seed, /undo forgets a question and its answer, /clear all."""
    first, again, other, third = answers_as_json(
        "Tell me a story.", "/retry", "/undo", "Who?", "/clear", "Tell me a story."
    )
    assert first["text"] == third["text"] == answer(story, USER)
    assert again["message"] == USER["content"]
    assert again["text"] == answer(story, USER, seed=4) != first["text"]
    assert other["text"] == answer(story, {"role": "user", "content": "Who?"})


def test_a_system_message_stays(answers_as_json, story):
    system = {"role": "system", "content": "Be kind."}
    wanted = answer(story, system, USER, template=TEMPLATES["chatml"])
    words = (*SHORT, "--template", "chatml")
    (given,) = answers_as_json(USER["content"], words=(*words, "--system", "Be kind."))
    (set_,) = answers_as_json("/system Be kind.", "/clear", USER["content"], words=words)
    assert given["text"] == set_["text"] == wanted


def test_set_changes_how_tokens_are_chosen(answers_as_json, chat, story):
    """/set has the command line's names, and llama.cpp's; a wrong value changes nothing."""
    (found,) = answers_as_json("/set temp 0", USER["content"])
    assert found["text"] == answer(story, USER, temperature=0)
    (found,) = answers_as_json("/set temperature 0", "/set n-predict 3", USER["content"])
    assert len(found["tokens"]) == 3
    _, stdout, stderr = chat("/set top-k 7", "/set top_k", "/set top-p 2", "/set wings 3", "/set")
    assert stdout.splitlines()[:2] == ["top-k 7", "top_k 7"]
    assert "  top-p 0.95" in stdout.splitlines()
    assert "(top-p is 2.0: want a number from 0 to 1" in stderr
    assert "wings is nothing that can be set here" in stderr


def test_messages_are_saved_and_loaded(answers_as_json, chat, tmp_path, story):
    file = tmp_path / "talk.json"
    (first,) = answers_as_json(USER["content"], f"/save {file}")
    said = [USER, {"role": "assistant", "content": first["text"]}]
    assert json.loads(file.read_text()) == said
    (second,) = answers_as_json(f"/load {file}", "Who?")
    assert second["text"] == answer(story, *said, {"role": "user", "content": "Who?"})
    file.write_text('[{"role": "bird", "content": "tweet"}]')
    for wrong in (file, tmp_path / "none.json"):
        code, _, stderr = chat(f"/load {wrong}")
        assert code == 0
        assert str(wrong) in stderr


def test_commands(chat):
    """/help lists all; unique prefixes work; unknown commands are no messages."""
    lines = ("/help", "/st", "/nope", "/retry", "/undo", "/s", "/save", "/exit", "/nope")
    code, stdout, stderr = chat(*lines)
    assert code == 0
    for name in COMMANDS:
        assert f"  {name}" in stdout
    assert "conversation: 0 messages, 0 tokens of 512" in stdout
    complaints = [line for line in stderr.splitlines() if line.startswith("(")]
    assert complaints == [
        "(there is no /nope; /help lists what there is)",
        "(there is no question to answer again)",
        "(there is nothing to undo)",
        "(there is no /s; /help lists what there is)",
        "(a file is wanted, as in /save talk.json)",
    ]


def test_messages_of_several_lines(answers_as_json):
    """With /multi an empty line ends a message."""
    first, second = answers_as_json("/multi", "Tell me", "a story.", "", "Who?", "", "/multi")
    assert (first["message"], second["message"]) == ("Tell me\na story.", "Who?")


def test_questions_beyond_the_context(answers_as_json):
    """It is dropped, with one line, and the chat continues. A chat that is too long as a whole
    reports it, or with context shift continues without its oldest questions."""
    long, short = answers_as_json("word " * 600, "Who?")
    assert "the context holds 512: /clear and /undo make room" in long["error"]
    assert short["text"]
    lines = [f"{i} " + "word " * 20 for i in range(3)]
    words = (*SHORT, "-c", "110")
    full, shifted = (
        answers_as_json(*lines, words=(*words, *more)) for more in ((), ("--context-shift",))
    )
    assert full[0]["text"] == shifted[0]["text"]
    assert "/clear and /undo make room, --context-shift lets go the oldest" in full[2]["error"]
    assert shifted[2]["text"] == answers_as_json(lines[2], words=words)[0]["text"]


def test_quiet_prints_answers_alone(chat, story):
    code, stdout, stderr = chat(USER["content"], "/stats", words=(*SHORT, "-q"))
    assert (code, stdout) == (0, answer(story, USER) + "\n")
    assert "tokens/s" in stderr


def test_the_first_message_as_an_option(answers_as_json, story):
    (found,) = answers_as_json(words=(*SHORT, "-p", r"Tell me a\x20story."))
    assert found["text"] == answer(story, USER)


def test_a_chat_resumes_from_its_session(answers_as_json, tmp_path, story):
    """The session has the cache, a file next to it the messages."""
    words = (*SHORT, "--session", str(tmp_path / "talk"))
    (first,) = answers_as_json(USER["content"], words=words)
    (second,) = answers_as_json("Who?", words=words)
    said = {"role": "assistant", "content": first["text"]}
    assert second["text"] == answer(story, USER, said, {"role": "user", "content": "Who?"})
    assert second["timings"]["prompt_eval"]["tokens"] < 20


def test_drafts_change_no_answer(answers_as_json, story):
    """`run`'s options are chat's."""
    (found,) = answers_as_json(
        USER["content"], words=(*SHORT, "--speculate", "lookup", "--temp", "0")
    )
    assert found["text"] == answer(story, USER, temperature=0)
    assert "speculation" in found["timings"]


def test_a_missing_template_is_reported_at_once(chat, tmp_path):
    """The line, before any question, has the remedy; a file or a name provides one."""
    path = Small(blocks=1).write(tmp_path / "small.gguf")
    line = fault(chat(model=path))
    assert "the model has no chat template" in line
    assert "--template FILE or one of chatml" in line
    template = tmp_path / "own.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    words = ("-n", "2", "-t", "1", "--json", "--template", str(template))
    stdout = printed(chat("5 6", model=path, words=words))
    assert len(json.loads(stdout)["tokens"]) >= 1
    template.write_text("{% for m in messages %}")
    assert "chat template: " in fault(chat("5 6", model=path, words=words))
    line = fault(chat("5 6", model=path, words=("--template", "nowhere")))
    assert "nowhere" in line
