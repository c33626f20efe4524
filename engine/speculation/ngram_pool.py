"""The n-grams that Lookahead decoding has found (arXiv 2402.02057)."""


class NgramPool:
    """For each token at most `most` tuples of tokens that may follow it, of which the one that was
    found least recently goes first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, token: int, following: tuple[int, ...]) -> None:
        found = self._found.setdefault(token, {})
        found.pop(following, None)
        found[following] = None
        if len(found) > self._most:
            del found[next(iter(found))]

    def of(self, token: int) -> list[tuple[int, ...]]:
        """What may follow the token, found last first."""
        return list(reversed(self._found.get(token, {})))

    def clear(self) -> None:
        self._found.clear()
