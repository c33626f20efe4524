"""Prompt lookup: what followed the last few tokens when they occurred before."""

from collections import deque
from collections.abc import Sequence

from engine.speculation.drafter import Draft, Verified


class PromptLookupDrafter:
    """Proposes what followed the longest suffix of the text, of `least` to `longest` tokens, that
    occurred before (vLLM's prompt_lookup_min and prompt_lookup_max).

    Of several occurrences the latest counts, where vLLM takes the first: what a text says now is
    closer to what it said last, and one place an n-gram is all that has to be kept. A continuation
    that reaches the text's end goes on in the draft itself, as in LZ77, so a text that repeats
    itself is drafted to any length.

    Time is the same for every token, however long the text; memory is a place for each different
    n-gram, at most longest - least + 1 a token.
    """

    def __init__(self, least: int = 1, longest: int = 4) -> None:
        if not 1 <= least <= longest:
            raise ValueError(f"n-grams of {least} to {longest} tokens: want 1 <= least <= longest")
        self._lengths = range(longest, least - 1, -1)
        self.begin(())

    def begin(self, prompt: Sequence[int]) -> None:
        self._follows: dict[tuple[int, ...], int] = {}  # where the token behind an n-gram stands
        self._last: deque[int] = deque(maxlen=self._lengths[0])
        self._size = 0
        self._read(prompt)

    def draft(self, text: Sequence[int], most: int) -> Draft:
        if len(text) != self._size:
            raise ValueError(f"the text has {len(text)} tokens, {self._size} were told")
        for suffix in self._suffixes():
            if suffix in self._follows:
                return Draft.chain(_continued(text, self._follows[suffix], most))
        return Draft()

    def verified(self, step: Verified) -> None:
        self._read(step.tokens)

    def _read(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            for suffix in self._suffixes():
                self._follows[suffix] = self._size
            self._last.append(token)
            self._size += 1

    def _suffixes(self) -> list[tuple[int, ...]]:
        """Longest first."""
        last = tuple(self._last)
        return [last[len(last) - n :] for n in self._lengths if n <= len(last)]


def _continued(text: Sequence[int], start: int, most: int) -> list[int]:
    """What follows from `start` on, over and over where the text is at its end."""
    period = len(text) - start
    return [text[start + i % period] for i in range(most)]
