"""A completion: when it ends, and what is shown of it."""

from pathlib import Path

import pytest

from conformance.llama.small_models import Small
from conformance.llama.spelling import (
    EOS,
    LETTERS,
    TEXT,
    generate,
    letters,
    say,
    spelled,
    text,
    tokens,
)  # fmt: skip
from engine import Engine, SamplingParams
from engine.chat import ChatError

# When it ends


def test_end_of_text(engine: Engine) -> None:
    """EOS ends a completion unseen; ignore_eos never draws it; min_tokens puts it off."""
    likely = {"logit_bias": {EOS: 1000.0}, "max_tokens": 6}
    (piece,) = generate(engine, **likely)
    assert (piece.token, piece.text, piece.finish_reason) == (EOS, "", "stop")
    ignoring = generate(engine, **likely, ignore_eos=True)
    assert EOS not in tokens(ignoring)
    assert (len(ignoring), ignoring[-1].finish_reason) == (6, "length")
    late = generate(engine, **likely, min_tokens=4)
    assert [t == EOS for t in tokens(late)] == [False] * 4 + [True]
    assert [p.finish_reason for p in late] == [None] * 4 + ["stop"]


def test_stop_tokens(engine: Engine) -> None:
    """A stop token ends a completion, once it has min_tokens, and is shown if stop strings are."""
    ids = letters("abc")
    for include, shown in ((False, "ab"), (True, "abc")):
        pieces = say(engine, letters("abcd"), stop_token_ids=ids[2:],
                     include_stop_str_in_output=include)  # fmt: skip
        assert (text(pieces), pieces[-1].finish_reason) == (shown, "stop")
    late = tokens(generate(engine, stop_token_ids=range(3, LETTERS), min_tokens=9))
    assert not set(late[:9]) & set(range(3, LETTERS))


@pytest.mark.parametrize(
    ("stop", "include", "shown", "reason"),
    [
        ("op w", False, "hello st", "stop"),
        ("op w", True, "hello stop w", "stop"),
        (["wor", "lo s", "o"], False, "hell", "stop"),
        (["o", "lo"], False, "hel", "stop"),
        ("stopp", False, "hello stop world", "length"),
        ("worldly", False, "hello stop world", "length"),
        (["d", "ld"], True, "hello stop world", "stop"),
        ("h", False, "", "stop"),
    ],
)
def test_stop_strings(
    engine: Engine, stop: str | list[str], include: bool, shown: str, reason: str
) -> None:
    """A stop string ends the text before it (or after), across tokens, and never shows in part."""
    ids = letters("hello stop world")
    pieces = say(engine, ids, stop=stop, include_stop_str_in_output=include)
    assert (text(pieces), pieces[-1].finish_reason) == (shown, reason)
    assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)
    for i in range(len(pieces)):
        assert shown.startswith(text(pieces[:i]))


def test_context_full(engine: Engine) -> None:
    """When the cells are used up a completion ends with "length", having used them all."""
    room = 64
    prompt = engine.encode(TEXT)
    pieces = generate(engine, prompt, max_tokens=None, ignore_eos=True)
    drawn = [p for p in pieces if p.finish_reason is None]
    assert len(prompt) + len(drawn) == room + 1
    assert pieces[-1].finish_reason == "length"
    assert tokens(drawn)[:16] == tokens(generate(engine, prompt, ignore_eos=True))
    assert generate(engine, letters("a" * room))[-1].finish_reason == "length"


# What is shown


def test_no_half_characters(engine: Engine) -> None:
    """Text comes in whole characters, however their bytes fall into tokens."""
    data = "é€😀 ü".encode()
    pieces = say(engine, spelled(data))
    assert text(pieces) == data.decode()
    assert "\ufffd" not in text(pieces)
    assert [p.text for p in pieces[:5]] == ["", "é", "", "", "€"]


def test_broken_characters_are_marked(engine: Engine) -> None:
    """Bytes that never become a character show as U+FFFD, at the end if that is when it shows."""
    assert text(say(engine, spelled("😀".encode()[:3]))) == "\ufffd"
    assert text(say(engine, [*spelled(b"\xe2\x82"), *letters("a")])) == "\ufffda"


def test_without_text(engine: Engine) -> None:
    """detokenize off makes tokens only."""
    pieces = generate(engine, detokenize=False)
    assert text(pieces) == ""
    assert tokens(pieces) == tokens(generate(engine))


def test_chat(engine: Engine, tmp_path: Path) -> None:
    """A chat is the generation from the model's own template; without one it is refused."""
    messages = [{"role": "user", "content": "hi"}]
    params = SamplingParams(temperature=0)
    prompt = engine.tokenizer.encode("user: hi\nassistant:", add_special=True)
    assert list(engine.chat(messages, params)) == list(engine.generate(prompt, params))
    refused = pytest.raises(ChatError, match=r"no chat template \(tokenizer.chat_template\)")
    with Engine.load(Small().write(tmp_path / "plain.gguf"), threads=1) as plain, refused:
        plain.chat(messages)
