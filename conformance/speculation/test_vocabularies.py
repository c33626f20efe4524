"""Vocabularies of a draft and its target: compared as by llama.cpp, and translated."""

import shlex
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.support.tokenizer.vocabularies import BPE, CONTROL, NORMAL, SPM
from conformance.support.tokenizer.vocabularies import gguf as keys
from engine.gguf.file import GGUFFile
from engine.shell import main
from engine.speculation.vocabularies import Translation, VocabularyError, check
from engine.tokenizer import Tokenizer

PAIRS = pytest.mark.parametrize(
    ("target", "draft"), [(SPM, BPE), (BPE, SPM), (SPM, SPM)], ids=["spm-bpe", "bpe-spm", "same"]
)
texts = st.text().filter(lambda text: "▁" not in text)
near_words = st.text(alphabet="ab <s>\té😀\n")


def metadata(words: list[str], **changed: Any) -> dict[str, Any]:
    """A byte-level vocabulary: BOS, EOS, then words, w5 among them."""
    tokens = [("<s>", CONTROL), ("</s>", CONTROL), *((word, NORMAL) for word in words)]
    special = {"bos_token_id": 0, "eos_token_id": 1} | changed
    special = {key: value for key, value in special.items() if value is not None}
    return keys("gpt2", tokens, merges=["w 5"], pre="gpt-2", **special)


WORDS = [*(f"w{i}" for i in range(10)), "w", "5", *(f"w{i}" for i in range(10, 198))]
TARGET = Tokenizer.from_metadata(metadata(WORDS))


def compared(words: list[str], **changed: Any) -> None:
    check(TARGET, Tokenizer.from_metadata(metadata(words, **changed)), "draft.gguf")


def test_the_same_vocabulary_passes():
    compared(WORDS)
    check(SPM, SPM, "draft.gguf")


def test_sizes_may_differ_by_128():
    """Vocabularies are padded; the larger may be the draft's or the target's."""
    compared(WORDS[:72])
    compared(WORDS + [f"more{i}" for i in range(128)])
    with pytest.raises(VocabularyError, match="has 73 tokens, the target's 202: they may differ"):
        compared(WORDS[:71])
    with pytest.raises(VocabularyError, match="has 331 tokens, the target's 202"):
        compared(WORDS + [f"more{i}" for i in range(129)])


def test_texts_are_compared_from_id_5_on():
    compared(["x", "y", "z", *WORDS[3:]])
    with pytest.raises(VocabularyError, match=r"token 5 is 'x' in the draft, 'w3' in the target"):
        compared([*WORDS[:3], "x", *WORDS[4:]])
    with pytest.raises(VocabularyError, match="token 201 is 'x'"):
        compared([*WORDS[:-1], "x"])


def test_different_tokenizer_models_are_refused():
    with pytest.raises(VocabularyError, match="is of kind 'gpt2', the target's of 'llama'"):
        check(SPM, BPE, "draft.gguf")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"bos_token_id": 3}, "BOS is 3 in the draft, 0 in the target"),
        ({"eos_token_id": None}, "EOS is none in the draft, 1 in the target"),
        (
            {"bos_token_id": 1, "eos_token_id": 0},
            "BOS is 1 in the draft, 0 in the target and EOS is 0 in the draft, 1 in the target",
        ),
    ],
)
def test_the_suggested_command_fixes_special_tokens(changed, said, tmp_path, monkeypatch):
    """The command in the error, run unchanged for any file name and with or without the keys,
    writes a file that passes."""
    path = tmp_path / "a draft.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata(WORDS, **changed).items():
        add = {int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        add[type(value)](key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with GGUFFile(path) as file, pytest.raises(VocabularyError) as refused:
        check(TARGET, Tokenizer.from_metadata(file.metadata), path)
    message = str(refused.value)
    assert said in message
    assert "\n" not in message
    command = shlex.split(message[message.index("assay inspect") :])
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as done:
        main()
    assert not done.value.code
    with GGUFFile(Path(command[-1])) as file:
        check(TARGET, Tokenizer.from_metadata(file.metadata), command[-1])


def test_a_target_without_bos_has_it_removed():
    target = Tokenizer.from_metadata(metadata(WORDS, bos_token_id=None))
    with pytest.raises(VocabularyError, match=r"--remove tokenizer\.ggml\.bos_token_id -o"):
        check(target, TARGET, "draft.gguf")


@PAIRS
@given(texts | near_words)
def test_translation_keeps_the_text(target, draft, text):
    """The draft's tokens decode to the target's text, with BOS in front of both."""
    try:
        ids = target.encode(text, add_special=False)
        wanted = draft.encode(text, add_special=False)
    except ValueError:  # a character that one of them lacks
        ids = wanted = None
    if ids is None:
        return
    translation = Translation(target, draft)
    assert translation.to_draft([target.bos_id, *ids]) == [draft.bos_id, *wanted]
    assert translation.to_draft(ids) == wanted


@PAIRS
@given(st.data())
def test_translated_drafts_are_prefixes(target, draft, data):
    """For any draft, the translation is a prefix of its bytes, and all of them if they are whole
    characters that the target has."""
    drafted = data.draw(st.lists(st.sampled_from(translated(draft)), max_size=8))
    said = b"".join(map(draft.piece_bytes, drafted))
    ids = Translation(target, draft).to_target(drafted)
    heard = b"".join(map(target.piece_bytes, ids))
    assert said.startswith(heard)
    try:
        wanted = target.encode(said.decode(), add_special=False, at_start=False)
    except ValueError:
        return
    if target.decode(wanted) == said.decode():
        assert heard == said


def translated(tokenizer: Tokenizer) -> list[int]:
    return [i for i in range(tokenizer.vocab_size) if tokenizer.is_text(i)]


def test_special_tokens_are_translated_by_role_and_name():
    there = Translation(SPM, BPE)
    user, theirs = SPM.texts.index("<user>"), BPE.texts.index("<user>")
    assert there.to_draft([SPM.bos_id, user, SPM.eos_id]) == [BPE.bos_id, theirs, BPE.eos_id]
    assert there.to_target([theirs, BPE.eos_id])[0] == user
    end = BPE.texts.index("<|im_end|>")
    assert there.to_target([theirs, end, theirs]) == [user]  # which has no namesake


def test_other_special_tokens_are_spelled_out():
    end = BPE.texts.index("<|im_end|>")
    assert SPM.decode(Translation(BPE, SPM).to_draft([end]), skip_special=False).strip() == (
        "<|im_end|>"
    )


def test_partial_characters_are_not_translated():
    """A text that ends inside a character is not translated; a draft is, up to there."""
    half = [SPM.texts.index("<0xC3>")]
    assert Translation(SPM, BPE).to_draft(half) is None
    assert Translation(SPM, BPE).to_draft([*half, SPM.texts.index("<0xA9>")]) is not None
    assert Translation(BPE, SPM).to_target([*SPM.encode("ab", add_special=False), *half]) == (
        BPE.encode(" ab", add_special=False)
    )
