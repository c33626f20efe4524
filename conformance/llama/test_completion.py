"""A completion: when it ends, and which text it returns."""

import pytest

from conformance.support.models.small_models import Small
from conformance.support.models.spelling import (
    EOS,
    LETTERS,
    TEXT,
    generate,
    letters,
    say,
    saying,
    spelled,
    text,
    tokens,
)  # fmt: skip
from engine import Engine, SamplingParams
from engine.chat import ChatError


def test_end_of_text(engine):
    """EOS ends a completion and is not shown; ignore_eos never samples it; min_tokens delays it."""
    likely = {"logit_bias": {EOS: 1000.0}, "max_tokens": 6}
    (piece,) = generate(engine, **likely)
    assert (piece.token, piece.text, piece.finish_reason) == (EOS, "", "stop")
    ignoring = generate(engine, **likely, ignore_eos=True)
    assert EOS not in tokens(ignoring)
    assert (len(ignoring), ignoring[-1].finish_reason) == (6, "length")
    late = generate(engine, **likely, min_tokens=4)
    assert [t == EOS for t in tokens(late)] == [False] * 4 + [True]
    assert [p.finish_reason for p in late] == [None] * 4 + ["stop"]


def test_stop_tokens(engine):
    """A stop token ends a completion after min_tokens, and is shown if stop strings are."""
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
def test_stop_strings(engine, stop, include, shown, reason):
    """A stop string ends the text before it (or after), across tokens, and never shows in part."""
    ids = letters("hello stop world")
    pieces = say(engine, ids, stop=stop, include_stop_str_in_output=include)
    assert (text(pieces), pieces[-1].finish_reason) == (shown, reason)
    assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)
    for i in range(len(pieces)):
        assert shown.startswith(text(pieces[:i]))


ROOM = 64  # cells of the engine


def test_context_full(engine):
    """When the cells are used up a completion ends with "length", having used all of them; its last
    token has one piece like the others."""
    prompt = engine.encode(TEXT)
    pieces = generate(engine, prompt, max_tokens=None, ignore_eos=True)
    assert len(prompt) + len(pieces) == ROOM + 1
    assert [p.finish_reason for p in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert tokens(pieces)[:16] == tokens(generate(engine, prompt, ignore_eos=True))
    (last,) = generate(engine, letters("a" * ROOM))
    assert (last.finish_reason, last.logprob < 0) == ("length", True)


def test_context_full_with_several_completions(engine):
    """Completions share the cells: each ends as it does alone, where it has used its share."""
    asked = {"max_tokens": None, "ignore_eos": True, "temperature": 1}
    pieces = generate(engine, prompt := engine.encode(TEXT), n=3, seed=1, **asked)
    for i in range(3):
        mine = [piece for piece in pieces if piece.index == i]
        assert tokens(mine, i) == tokens(generate(engine, prompt, seed=1 + i, **asked))
        assert [p.finish_reason for p in mine] == [None] * (len(mine) - 1) + ["length"]


def test_several_completions_leave_no_sampler(engine):
    """After several completions none of their samplers can be resumed, nor an earlier one."""
    generate(engine, temperature=1, seed=5, max_tokens=2)
    assert engine.sampler_state
    generate(engine, temperature=1, seed=5, max_tokens=2, n=2)
    assert engine.sampler_state is None


HELD = {
    "a character": (b"ab" + "😀".encode()[:3], {}, "ab", "\ufffd"),
    "a stop string": (b"abxy", {"stop": "xyz"}, "ab", "xy"),
    "either": (b"abx" + "é".encode()[:1], {"stop": "xyz"}, "ab", "x\ufffd"),
}


@pytest.mark.parametrize("reason", ["length", "cancelled"])
@pytest.mark.parametrize(("data", "params", "shown", "held"), HELD.values(), ids=HELD)
def test_held_back_text_is_returned_once(engine, data, params, shown, held, reason):
    """It is returned once: with the last token at a full context, or after cancel in a piece
    without a token, since all tokens have had theirs."""
    room = ROOM if reason == "cancelled" else len(data) - 1  # cells behind the prompt
    asked = SamplingParams(
        temperature=0, logits_processors=saying(spelled(data)), max_tokens=None, **params
    )
    pieces = []
    for piece in engine.stream(letters("a" * max(9, ROOM - room)), asked):
        pieces.append(piece)
        if reason == "cancelled" and len(pieces) == len(data):
            engine.cancel()
    last = [None] * (reason == "cancelled")
    assert tokens(pieces) == [*spelled(data), *last]
    assert (text(pieces[:-1]), pieces[-1].text) == (shown, held)
    assert [p.finish_reason for p in pieces] == [None] * (len(pieces) - 1) + [reason]


def test_no_partial_characters(engine):
    """Text arrives in whole characters, however their bytes are split into tokens."""
    data = "é€😀 ü".encode()
    pieces = say(engine, spelled(data))
    assert text(pieces) == data.decode()
    assert "\ufffd" not in text(pieces)
    assert [p.text for p in pieces[:5]] == ["", "é", "", "", "€"]


def test_invalid_utf8_is_replaced(engine):
    """Invalid UTF-8 is shown as U+FFFD, at the end if it is only known then."""
    assert text(say(engine, spelled("😀".encode()[:3]))) == "\ufffd"
    assert text(say(engine, [*spelled(b"\xe2\x82"), *letters("a")])) == "\ufffda"


def test_detokenize_false(engine):
    """detokenize=False returns only tokens."""
    pieces = generate(engine, detokenize=False)
    assert text(pieces) == ""
    assert tokens(pieces) == tokens(generate(engine))


def test_chat(engine, tmp_path):
    """A chat is the generation from the model's own template; without one it is refused."""
    messages = [{"role": "user", "content": "hi"}]
    params = SamplingParams(temperature=0)
    prompt = engine.tokenizer.encode("user: hi\nassistant:", add_special=True)
    assert list(engine.stream_chat(messages, params)) == list(engine.stream(prompt, params))
    refused = pytest.raises(ChatError, match=r"no chat template \(tokenizer.chat_template\)")
    with Engine.load(Small().write(tmp_path / "plain.gguf"), threads=1) as plain, refused:
        plain.stream_chat(messages)
