"""Structured outputs: a JSON schema, a regular expression, a choice of texts, or a grammar.

The package llguidance computes the mask of tokens that may come next. The mask is the last edit of
the logits before the sampler chain, for drafts too. When the output is complete, the end-of-text
tokens are allowed.
"""

import json
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from engine.errors import PackageError, SamplingError
from engine.sampling.params import Logits
from engine.sampling.structured_params import StructuredOutputsParams
from engine.tokenizer import Tokenizer

CACHED = 64  # compiled grammars in the cache
# A space, or a newline with indentation, as in llama.cpp: otherwise models may emit spaces forever.
JSON = {"whitespace_pattern": r" |\n[ \t]{0,20}"}


class Constraint:
    """The state of an output in its grammar, which messages call `what`."""

    def __init__(self, matcher: Any, what: str) -> None:
        self._matcher, self._what = matcher, what

    def ban(self, logits: Logits) -> None:
        """Ban tokens that the grammar does not allow, in logits [vocab]."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=len(logits), bitorder="little").view(bool)
        self._check_error()
        logits[~allowed] = -np.inf

    def accept(self, token: int) -> None:
        """Append a token to the output."""
        self._matcher.consume_token(token)
        self._check_error()

    def _check_error(self) -> None:
        if self._matcher.is_error():
            raise SamplingError(f"{self._what}: {_one_line(self._matcher.get_error())}")


class Grammars:
    """Creates constraints for a tokenizer; caches compiled grammars."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab
        self._compiled = lru_cache(CACHED)(self._compile)

    def constraint(self, params: StructuredOutputsParams) -> Constraint:
        """A constraint for a new output; raises `SamplingError` for an invalid grammar."""
        return Constraint(self._compiled(params).deep_copy(), params.what)

    def _compile(self, params: StructuredOutputsParams) -> Any:
        library = _library()
        matcher = library.LLMatcher(
            self._library_tokenizer, _grammar(library.LLMatcher, params), log_level=0
        )
        begun = matcher.deep_copy()
        begun.compute_bitmask()  # detects grammars that match nothing
        if begun.is_error():
            raise SamplingError(f"{params.what}: {_one_line(begun.get_error())}")
        return matcher

    @cached_property
    def _library_tokenizer(self) -> Any:
        """The vocabulary as an llguidance tokenizer."""
        ends = sorted(self._tokenizer.eog_ids)
        if not ends:
            raise SamplingError("structured_outputs needs an end-of-text token: the model has none")
        library = _library()
        wrapped = library.TokenizerWrapper(_Vocabulary(self._tokenizer))
        return library.LLTokenizer(wrapped, n_vocab=self._vocab, eos_token=ends)


class _Vocabulary:
    """A tokenizer with llguidance's interface."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ids = range(tokenizer.vocab_size)
        self.tokens = [tokenizer.piece_bytes(token) for token in ids]
        hidden = {token for token in ids if tokenizer.is_special(token)}
        self.special_token_ids = sorted(hidden | tokenizer.eog_ids)
        self.eos_token_id, self.bos_token_id = min(tokenizer.eog_ids), tokenizer.bos_id

    def __call__(self, text: str) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("a text is encoded, not bytes")
        return self._tokenizer.encode(text, add_special=False, at_start=False)


@lru_cache(CACHED)
def check(params: StructuredOutputsParams) -> None:
    """Validate without a model: raises `SamplingError` for an invalid grammar, `PackageError` if
    llguidance is not installed."""
    matcher = _library().LLMatcher
    if error := matcher.validate_grammar(_grammar(matcher, params), None):
        raise SamplingError(f"{params.what}: {_one_line(error)}")


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise PackageError(
            "structured_outputs needs the package llguidance: pip install 'assay[structured]'"
        ) from error
    return llguidance


def _grammar(matcher: Any, params: StructuredOutputsParams) -> str:
    """The grammar in llguidance's format."""
    try:
        return _convert(matcher, params)
    except Exception as error:  # the GBNF converter raises bare Exceptions
        raise SamplingError(f"{params.what}: {_one_line(str(error))}") from error


def _convert(matcher: Any, params: StructuredOutputsParams) -> str:
    if params.json is not None:
        return str(matcher.grammar_from_json_schema(params.json, defaults=JSON))
    if params.regex is not None:
        return str(matcher.grammar_from_regex(params.regex))
    if params.choice is not None:
        texts = (json.dumps(text, ensure_ascii=False) for text in params.choice)
        return str(matcher.grammar_from_lark(f"start: TEXT\nTEXT: {' | '.join(texts)}"))
    from llguidance.gbnf_to_lark import any_to_lark

    return str(matcher.grammar_from_lark(any_to_lark(params.grammar)))


def _one_line(message: str) -> str:
    """The first line of a message, with the errors of a regular expression's parser."""
    lines = [line.strip() for line in message.splitlines()]
    if lines[0].startswith("NoExtension"):
        return "no text matches it"
    errors = [line for line in lines[1:] if line.startswith("error:")]
    return " ".join([*lines[:1], *errors])
