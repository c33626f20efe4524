"""Answers of a form: a JSON schema, a regular expression, some texts, or a grammar.

The package llguidance says, from what an answer has so far, which tokens may follow. The mask is
the last edit of the logits before the chain of samplers, so that whatever draws, drafts or none,
draws among those; where the form is complete, the end of the text is among them.
"""

import json
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from engine.errors import PackageError, SamplingError
from engine.sampling.params import Logits
from engine.sampling.structured_params import StructuredOutputsParams
from engine.tokenizer import Tokenizer

KEPT = 64  # compiled forms
# A space, or a new line with an indentation, as llama.cpp has it: models would go on with spaces.
JSON = {"whitespace_pattern": r" |\n[ \t]{0,20}"}


class Constraint:
    """Where an answer stands in its form, of which `what` is the name."""

    def __init__(self, matcher: Any, what: str) -> None:
        self._matcher, self._what = matcher, what

    def ban(self, logits: Logits) -> None:
        """Forbid what cannot follow, in logits [vocab]."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        allowed = np.unpackbits(bits, count=len(logits), bitorder="little").view(bool)
        self._demand()
        logits[~allowed] = -np.inf

    def accept(self, token: int) -> None:
        """The answer goes on with this token."""
        self._matcher.consume_token(token)
        self._demand()

    def _demand(self) -> None:
        if self._matcher.is_error():
            raise SamplingError(f"{self._what}: {_line(self._matcher.get_error())}")


class Grammars:
    """Makes constraints in a tokenizer's tokens; forms that were compiled lately stay."""

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab
        self._compiled = lru_cache(KEPT)(self._compile)

    def constraint(self, asked: StructuredOutputsParams) -> Constraint:
        """Of an answer that begins; SamplingError says what is wrong with the form."""
        return Constraint(self._compiled(asked).deep_copy(), asked.what)

    def _compile(self, asked: StructuredOutputsParams) -> Any:
        library = _library()
        matcher = library.LLMatcher(self._known, _grammar(library.LLMatcher, asked), log_level=0)
        begun = matcher.deep_copy()
        begun.compute_bitmask()  # here a form that nothing has shows itself
        if begun.is_error():
            raise SamplingError(f"{asked.what}: {_line(begun.get_error())}")
        return matcher

    @cached_property
    def _known(self) -> Any:
        """The vocabulary as the package knows it."""
        ends = sorted(self._tokenizer.eog_ids)
        if not ends:
            raise SamplingError("structured_outputs needs a token that ends a text: there is none")
        library = _library()
        wrapped = library.TokenizerWrapper(_Vocabulary(self._tokenizer))
        return library.LLTokenizer(wrapped, n_vocab=self._vocab, eos_token=ends)


class _Vocabulary:
    """A tokenizer by the names that llguidance asks for."""

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


@lru_cache(KEPT)
def check(asked: StructuredOutputsParams) -> None:
    """What can be said of a form before there is a model: SamplingError where it is none,
    PackageError where llguidance is not installed."""
    matcher = _library().LLMatcher
    if said := matcher.validate_grammar(_grammar(matcher, asked), None):
        raise SamplingError(f"{asked.what}: {_line(said)}")


def _library() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise PackageError(
            "structured_outputs needs the package llguidance: pip install 'assay[structured]'"
        ) from error
    return llguidance


def _grammar(matcher: Any, asked: StructuredOutputsParams) -> str:
    """The form as llguidance takes it."""
    try:
        return _converted(matcher, asked)
    except Exception as error:  # the converter of GBNF raises its own, and Exception itself
        raise SamplingError(f"{asked.what}: {_line(str(error))}") from error


def _converted(matcher: Any, asked: StructuredOutputsParams) -> str:
    if asked.json is not None:
        return str(matcher.grammar_from_json_schema(asked.json, defaults=JSON))
    if asked.regex is not None:
        return str(matcher.grammar_from_regex(asked.regex))
    if asked.choice is not None:
        texts = (json.dumps(text, ensure_ascii=False) for text in asked.choice)
        return str(matcher.grammar_from_lark(f"start: TEXT\nTEXT: {' | '.join(texts)}"))
    from llguidance.gbnf_to_lark import any_to_lark

    return str(matcher.grammar_from_lark(any_to_lark(asked.grammar)))


def _line(message: str) -> str:
    """The first of a message's lines, with what a regular expression's parser says behind it."""
    lines = [line.strip() for line in message.splitlines()]
    if lines[0].startswith("NoExtension"):
        return "no text has this form"
    said = [line for line in lines[1:] if line.startswith("error:")]
    return " ".join([*lines[:1], *said])
