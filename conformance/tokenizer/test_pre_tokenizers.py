"""Where texts are cut into words, by every name of `tokenizer.ggml.pre`: as llama.cpp cuts them."""

import pytest

from conformance.llama.peers import goldens
from conformance.support.vocabularies import write_vocabulary
from conformance.support.words import digest, fuzzed, vocabulary
from engine.tokenizer import Tokenizer
from engine.tokenizer.pre_tokenizers import PRE_TOKENIZERS

TOLD = goldens.read_json("words", goldens.FOLDER)
GROUPS = {
    names[0]: names
    for pre in dict.fromkeys(PRE_TOKENIZERS.values())
    if (names := [name for name, own in PRE_TOKENIZERS.items() if own == pre])
}


@pytest.mark.parametrize("names", GROUPS.values(), ids=GROUPS)
def test_words_are_llama_cpps(names):
    """Ids of 805 texts, which llama.cpp gave once, are the same."""
    tokenizer = Tokenizer.from_metadata(vocabulary(names[0]))
    ours = digest(lambda text: tokenizer.encode(text, add_special=False))
    assert {TOLD[name] for name in names} == {ours}


@pytest.mark.parametrize("names", GROUPS.values(), ids=GROUPS)
def test_llama_cpp_still_cuts_them_so(names, tmp_path):
    """It is asked anew, and of as many random texts as ASSAY_FUZZ says too."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is missing: make test-peers")
    from conformance.llama.peers import llama_cpp_python

    metadata = vocabulary(names[0])
    asked = llama_cpp_python.words(write_vocabulary(tmp_path / "words.gguf", metadata))
    assert digest(asked) == TOLD[names[0]]
    tokenizer = Tokenizer.from_metadata(metadata)
    for text in fuzzed():
        assert tokenizer.encode(text, add_special=False) == asked(text), ascii(text)
