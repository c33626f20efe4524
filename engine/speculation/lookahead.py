"""Lookahead decoding (arXiv 2402.02057): the target generates n-grams by Jacobi iteration in the
same steps, and verifies those found before.

A step's tokens are one tree: the first row of the window is a path from the text, the rest of each
column is a path from its first cell, and n-grams are paths from the text. So a step is a draft like
any other, and correct guesses of the window are accepted too.
"""

import random
from collections.abc import Sequence

from engine.speculation.drafter import TEXT, Draft, DraftBuilder, Verification


class Window:
    """W columns by N - 1 rows of guesses: the cell in row r, column j is r + j tokens after the
    text's last token, which is the cell at 0, 0.

    Row 0 is a path; cells in later rows follow the one above. A column is guessed one row per step,
    each from the rows before, and the target's argmax after the last row is the next row. A column
    then is an n-gram: its first token and N - 1 more.
    """

    def __init__(self, W: int, N: int, seed: int) -> None:
        if W < 1 or N < 2:
            raise ValueError(f"a window of W={W}, N={N}: want W >= 1 and N >= 2")
        self.W, self.N = W, N
        self._seed = seed
        self._rows: list[list[int]] = []
        self._ages: list[int] = []  # steps since each column was randomized
        self.begin([0])

    def begin(self, prompt: Sequence[int]) -> None:
        """Initialize the window with random tokens of the prompt."""
        self._random = random.Random(self._seed)
        self._from = list(prompt) or [0]
        self._rows = [self._random.choices(self._from, k=self.W) for _ in range(self.N - 1)]
        self._ages = [0] * self.W

    @property
    def size(self) -> int:
        """Tokens of the window in a step, without the text's last one."""
        return self.W * (self.N - 1) - 1

    def add_to(self, last: int, branches: DraftBuilder) -> list[int]:
        """Add the window to a draft; returns the nodes of the last row."""
        first, *later = self._rows
        first[0] = last
        nodes = [TEXT]
        for token in first[1:]:
            nodes.append(branches.add(nodes[-1], token))
        for row in later:
            nodes = [branches.add(node, token) for node, token in zip(nodes, row, strict=True)]
        return nodes

    def advance(self, guesses: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
        """Append a row of W argmax tokens and drop the first row. Returns the n-grams of columns
        that the target guessed completely, each as its first token and the rest."""
        self._rows.append(list(guesses))
        columns = zip(*self._rows, strict=True)
        ngrams = [
            (column[0], column[1:])
            for age, column in zip(self._ages, columns, strict=True)
            if age >= self.N - 2
        ]
        del self._rows[0]
        self._ages = [age + 1 for age in self._ages]
        return ngrams

    def slide(self, columns: int) -> None:
        """Drop columns at the front and append random ones."""
        gone = min(columns, self.W)
        for row in self._rows:
            row[:] = row[gone:] + self._random.choices(self._from, k=gone)
        self._ages = self._ages[gone:] + [0] * gone


class NgramPool:
    """Pool of n-grams: for each token at most `most` continuations; the oldest is evicted."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._found: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, token: int, following: tuple[int, ...]) -> None:
        found = self._found.setdefault(token, {})
        found.pop(following, None)
        found[following] = None
        if len(found) > self._most:
            del found[next(iter(found))]

    def continuations(self, token: int) -> list[tuple[int, ...]]:
        """Continuations of a token, the latest first."""
        return list(reversed(self._found.get(token, {})))

    def clear(self) -> None:
        self._found.clear()


class LookaheadDrafter:
    """A window of W columns for n-grams of N tokens; up to G n-grams that begin with the text's
    last token are verified, in steps of about (W + G)(N - 1) tokens.

    Nothing is kept between texts. If the window does not fit into a draft, it has n-grams only.
    """

    def __init__(self, W: int = 15, N: int = 5, G: int = 15, seed: int = 0) -> None:
        if G < 0:
            raise ValueError(f"G is {G}: want 0 or more")
        self._window = Window(W, N, seed)
        self._pool = NgramPool(G)
        self._last_row: list[int] = []  # its nodes in the draft; empty: window left out

    def begin(self, prompt: Sequence[int]) -> None:
        self._window.begin(prompt)
        self._pool.clear()
        self._last_row = []

    def draft(self, text: Sequence[int], most: int) -> Draft:
        branches = DraftBuilder()
        fits = self._window.size <= most
        self._last_row = self._window.add_to(text[-1], branches) if fits else []
        for ngram in self._pool.continuations(text[-1]):
            node = TEXT
            for token in ngram:
                if len(branches) >= most:
                    break
                node = branches.add(node, token)
        return branches.build()

    def verified(self, step: Verification) -> None:
        ahead = len(step.tokens)
        if self._last_row:
            guesses = [step.argmax(node) for node in self._last_row]
            for token, following in self._window.advance(guesses):
                self._pool.add(token, following)
            ahead -= 1  # dropping a row moved the window by one
        self._window.slide(ahead)
