"""Prompt lookup: propose what followed the last tokens at an earlier occurrence."""

from collections import deque
from collections.abc import Sequence

from engine.speculation.drafter import Draft, Verification


class PromptLookupDrafter:
    """Proposes the continuation of the longest suffix of the text, `least` to `longest` tokens,
    that occurred before (vLLM's prompt_lookup_min and prompt_lookup_max).

    The latest occurrence counts, where vLLM takes the first: recent text is more similar, and one
    position per n-gram suffices. A continuation that reaches the text's end continues in the draft
    itself, as in LZ77, so repetitions are drafted to any length.

    Time per token is constant; memory is a position for each different n-gram, at most longest -
    least + 1 per token.
    """

    def __init__(self, least: int = 1, longest: int = 4) -> None:
        if not 1 <= least <= longest:
            raise ValueError(f"n-grams of {least} to {longest} tokens: want 1 <= least <= longest")
        self._lengths = range(longest, least - 1, -1)
        self.begin(())

    def begin(self, prompt: Sequence[int]) -> None:
        self._follows: dict[tuple[int, ...], int] = {}  # index of the token after an n-gram
        self._last: deque[int] = deque(maxlen=self._lengths[0])
        self._size = 0
        self._read(prompt)

    def draft(self, text: Sequence[int], most: int) -> Draft:
        if len(text) != self._size:
            raise ValueError(f"the text has {len(text)} tokens, {self._size} were passed")
        for suffix in self._suffixes():
            if suffix in self._follows:
                return Draft.chain(_continued(text, self._follows[suffix], most))
        return Draft()

    def verified(self, step: Verification) -> None:
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
    """The text from `start` on, repeated at its end."""
    period = len(text) - start
    return [text[start + i % period] for i in range(most)]
