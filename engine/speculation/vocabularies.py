"""Whether a draft model's tokens are the target's, and translation where they are not."""

import shlex
from collections.abc import Iterator, Sequence
from itertools import groupby, islice, takewhile
from pathlib import Path

from engine.errors import EngineError
from engine.speculation.drafter import Draft, Drafter, Verified
from engine.tokenizer import Detokenizer, Tokenizer, TokenizerError

# llama.cpp's rule: vocabularies of one family differ in what was padded, and in the first tokens.
SIZE_DIFFERENCE = 128
FIRST_COMPARED = 5


class VocabularyError(EngineError):
    """A draft model whose tokens are not the target's: one plain line."""


def check(target: Tokenizer, draft: Tokenizer, draft_file: str | Path) -> None:
    """That tokens mean the same to both, by llama.cpp's rule: one kind of vocabulary, sizes at most
    128 apart, the same texts from id 5 on, the same BOS and EOS.

    Ids that only one of them has are no tokens of the other. Raises `VocabularyError`; where only
    BOS or EOS are in the way, it says how to write a copy of the draft's file that passes.
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
        f"{draft_file}: {listed}; if they mean the same:"
        f" assay inspect {shlex.quote(str(path))} {changes} -o {shlex.quote(str(copy))}"
    )


class Translation:
    """A text's tokens as those of a draft model with another vocabulary, and drafts back.

    Text goes through text; BOS and EOS become BOS and EOS, and other special tokens those of the
    same name. What comes back is a guess like any draft: it has no probabilities, so it is verified
    as a deterministic one, which is exact.
    """

    def __init__(self, target: Tokenizer, draft: Tokenizer) -> None:
        self._target, self._draft = target, draft
        named = {draft.texts[i]: i for i in _special(draft)}
        pairs = [(i, named[target.texts[i]]) for i in _special(target) if target.texts[i] in named]
        roles = (target.bos_id, draft.bos_id), (target.eos_id, draft.eos_id)
        pairs += [(i, other) for i, other in roles if i is not None and other is not None]
        # one token may have both roles: it is BOS in front, and EOS elsewhere
        self._to_draft = dict(pairs)
        self._to_target = {theirs: ours for ours, theirs in pairs}

    def to_draft(self, tokens: Sequence[int]) -> list[int] | None:
        """A text's tokens, all of them, as the draft model's; None where the text cannot be said:
        it ends within a character, or has one that the draft's vocabulary lacks.

        A word's tokens may change when it grows, so what a draft model holds of the text before is
        good up to where the two differ. Special tokens without a namesake are spelled out.
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
                        ids += self._named(token)
        except TokenizerError:
            return None
        return None if unfinished else ids

    def to_target(self, drafted: Sequence[int]) -> list[int]:
        """What of a draft model's tokens, which continue a text, can be said in the target's.

        The target's tokens spell what the draft's do, up to the end of the last whole character,
        the first that the target's vocabulary lacks, or the first special token without a namesake.
        """
        ids: list[int] = []
        for is_text, run in groupby(drafted, self._draft.is_text):
            if is_text:
                said = b"".join(map(self._draft.piece_bytes, run))
                heard = list(self._hear(_whole_characters(said)))
                ids += heard
                whole = said == b"".join(map(self._target.piece_bytes, heard))
            else:
                known = list(takewhile(self._to_target.__contains__, named := list(run)))
                ids += (self._to_target[token] for token in known)
                whole = len(known) == len(named)
            if not whole:
                break
        return ids

    def _named(self, token: int) -> list[int]:
        if token in self._to_draft:
            return [self._to_draft[token]]
        return self._draft.encode(self._target.texts[token], add_special=False, at_start=False)

    def _hear(self, text: str) -> Iterator[int]:
        """The target's tokens, as far as they spell the text."""
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


def _whole_characters(said: bytes) -> str:
    """What comes before the first byte that is no part of a character."""
    try:
        return said.decode()
    except UnicodeDecodeError as error:
        return said[: error.start].decode()


class TranslatedDrafter:
    """A drafter that reads and writes another vocabulary's tokens. Its drafts are chains, and
    deterministic once they are translated."""

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

    def verified(self, step: Verified) -> None:
        """Nothing: the next text says it, in the other vocabulary's tokens."""
