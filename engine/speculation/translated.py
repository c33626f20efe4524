"""Drafts of a model with another vocabulary, translated through text."""

from collections.abc import Sequence

from engine.speculation.drafter import Draft, Drafter, Verified
from engine.speculation.vocabularies import Translation
from engine.tokenizer import Tokenizer


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
