"""Compatibility of a draft model's vocabulary with the target's, and translation between them."""

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby, islice, takewhile
from pathlib import Path

from engine.errors import EngineError
from engine.speculation.drafter import Draft, Drafter, Verification
from engine.tokenizer import Detokenizer, Tokenizer, TokenizerError

# llama.cpp's rule: related vocabularies may differ in padding and in the first tokens.
SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5


class VocabularyError(EngineError):
    """A draft model with an incompatible vocabulary; one line."""


def check(target: Tokenizer, draft: Tokenizer, draft_file: str | Path) -> None:
    """Check that vocabularies are compatible, by llama.cpp's rule: the same kind, sizes at most 128
    apart, the same texts from id 5 on, the same BOS and EOS.

    Ids that only one vocabulary has are no tokens of the other. Raises `VocabularyError`; if only
    BOS or EOS differ, with a command that writes a compatible copy of the draft's file.
    """
    if draft.kind != target.kind:
        raise VocabularyError(
            f"{draft_file}: the draft's vocabulary is of kind {draft.kind!r}, the target's of"
            f" {target.kind!r}"
        )
    sizes = draft.vocab_size, target.vocab_size
    if abs(sizes[0] - sizes[1]) > SIZE_DIFFERENCE:
        raise VocabularyError(
            f"{draft_file}: the draft's vocabulary has {sizes[0]} tokens, the target's {sizes[1]}:"
            f" they may differ by {SIZE_DIFFERENCE}"
        )
    pairs = zip(draft.texts, target.texts, strict=False)
    for i, (ours, theirs) in islice(enumerate(pairs), FIRST_COMPARED, None):
        if ours != theirs:
            raise VocabularyError(
                f"{draft_file}: token {i} is {ours!r} in the draft, {theirs!r} in the target"
            )
    _check_special(target, draft, draft_file)


def _check_special(target: Tokenizer, draft: Tokenizer, draft_file: str | Path) -> None:
    differing = [
        (name, ours, theirs)
        for name, ours, theirs in (
            ("bos", draft.bos_id, target.bos_id),
            ("eos", draft.eos_id, target.eos_id),
        )
        if ours != theirs
    ]
    if not differing:
        return
    listed = " and ".join(
        f"{name.upper()} is {'none' if ours is None else ours} in the draft,"
        f" {'none' if theirs is None else theirs} in the target"
        for name, ours, theirs in differing
    )
    changes = " ".join(
        f"--remove tokenizer.ggml.{name}_token_id"
        if theirs is None
        else f"--set tokenizer.ggml.{name}_token_id:uint32={theirs}"
        for name, _, theirs in differing
    )
    path = Path(draft_file)
    copy = path.with_name(f"{path.stem}-for-target.gguf")
    raise VocabularyError(
        f"{draft_file}: {listed}; if these are equivalent:"
        f" assay inspect {shlex.quote(str(path))} {changes} -o {shlex.quote(str(copy))}"
    )


class Translation:
    """Translates a text's tokens to a draft model's vocabulary, and drafts back.

    Texts are decoded and encoded; BOS and EOS map to BOS and EOS, other special tokens to those of
    the same name. Translated drafts have no probabilities and are verified as deterministic ones,
    which is exact.
    """

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self._target, self._draft = target, draft
        named = {draft.texts[i]: i for i in _special(draft)}
        pairs = [(i, named[target.texts[i]]) for i in _special(target) if target.texts[i] in named]
        roles = (target.bos_id, draft.bos_id), (target.eos_id, draft.eos_id)
        pairs += [(i, other) for i, other in roles if i is not None and other is not None]
        # one token may have both roles: BOS at the start, EOS elsewhere
        self._to_draft = dict(pairs)
        self._to_target = {theirs: ours for ours, theirs in pairs}

    def to_draft(self, tokens: Sequence[int]) -> list[int] | None:
        """Translate a whole text for the draft model. Returns None if that is impossible: it ends
        within a character, or has one that the draft's vocabulary lacks.

        A word's tokens may change as it grows, so a draft model's cache is valid up to the first
        difference. Special tokens without a counterpart are encoded as text.
        """
        ids: list[int] = []
        unfinished = ""
        if tokens and tokens[0] == self._target.bos_id and self._draft.bos_id is not None:
            ids, tokens = [self._draft.bos_id], tokens[1:]
        try:
            for is_text, run in groupby(tokens, self._target.is_text):
                if is_text:
                    stream = Detokenizer(self._target)
                    text = "".join(map(stream.push, run))
                    unfinished = stream.flush()
                    ids += self._draft.encode(text + unfinished, add_special=False)
                else:
                    unfinished = ""
                    for token in run:
                        ids += self._translated(token)
        except TokenizerError:
            return None
        return None if unfinished else ids

    def to_target(self, drafted: Sequence[int]) -> list[int]:
        """Translate drafted tokens, which continue a text, as far as possible.

        The result spells the same text, up to the last complete character, the first one that the
        target's vocabulary lacks, or the first special token without a counterpart.
        """
        ids: list[int] = []
        for is_text, run in groupby(drafted, self._draft.is_text):
            if is_text:
                text_bytes = b"".join(map(self._draft.piece_bytes, run))
                spelled = list(self._spelled(_whole_characters(text_bytes)))
                ids += spelled
                whole = text_bytes == b"".join(map(self._target.piece_bytes, spelled))
            else:
                known = list(takewhile(self._to_target.__contains__, named := list(run)))
                ids += (self._to_target[token] for token in known)
                whole = len(known) == len(named)
            if not whole:
                break
        return ids

    def _translated(self, token: int) -> list[int]:
        if token in self._to_draft:
            return [self._to_draft[token]]
        return self._draft.encode(self._target.texts[token], add_special=False, at_start=False)

    def _spelled(self, text: str) -> Iterator[int]:
        """The target's tokens, as far as they spell the text exactly."""
        try:
            ids = self._target.encode(text, add_special=False, at_start=False)
        except TokenizerError:  # no token for a character
            return
        rest = text.encode()
        for token in ids:
            piece = self._target.piece_bytes(token)
            if not rest.startswith(piece):
                return
            rest = rest[len(piece) :]
            yield token


def _special(tokenizer: Tokenizer) -> Iterator[int]:
    return (i for i in range(tokenizer.vocab_size) if not tokenizer.is_text(i))


def _whole_characters(text_bytes: bytes) -> str:
    """Decode up to the first byte that is not part of a complete character."""
    try:
        return text_bytes.decode()
    except UnicodeDecodeError as error:
        return text_bytes[: error.start].decode()


class TranslatedDrafter:
    """Wraps a drafter with another vocabulary. Its drafts are chains, deterministic after
    translation."""

    def __init__(self, drafter: Drafter, target: Tokenizer, draft: Tokenizer) -> None:
        self._drafter, self._translation = drafter, Translation(target, draft)

    def begin(self, prompt: Sequence[int]) -> None:
        self._drafter.begin(self._translation.to_draft(prompt) or [])

    def draft(self, text: Sequence[int], most: int) -> Draft:
        own = self._translation.to_draft(text)
        if not own:
            return Draft()
        found = self._drafter.draft(own, most)
        ends = max(range(len(found)), key=lambda node: len(found.path(node)), default=None)
        if ends is None:
            return Draft()
        tokens = [found.tokens[node] for node in found.path(ends)]
        return Draft.chain(self._translation.to_target(tokens)[:most])

    def verified(self, step: Verification) -> None:
        """Not needed: the next `draft` has the text."""
