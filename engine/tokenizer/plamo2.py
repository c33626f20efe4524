"""PLaMo 2's tokenizer: the tokenization of least cost, by dynamic programming from a text's end.

A token costs -10,000 times its score, rounded; a character that is not a token costs 10,000,000 and
is encoded as byte tokens. Ties go to the longest first token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from engine.tokenizer.matches import Matches
from engine.tokenizer.vocab import TokenizerError, TokenType, Vocab, read_scores

SCALE: Final = 1e4
UNKNOWN: Final = 10_000_000  # the cost of a character that is not a token
NEVER: Final = 20_000_000  # tokens of this cost are not used
MOST: Final = 2**31 - 1  # costs are int32 in llama.cpp
BOM: Final = "\ufeff"


class Plamo2:
    """Ordinary text to ids, and the bytes of an ordinary token."""

    def __init__(self, metadata: Mapping[str, Any], vocab: Vocab) -> None:
        scores = read_scores(metadata, vocab)
        self._tokens = vocab.tokens
        self._bytes = {int(vocab.tokens[i][3:5], 16): i for i in vocab.of_type(TokenType.BYTE)}
        if len(self._bytes) != 256:
            raise TokenizerError(
                f"tokenizer.ggml.token_type has {len(self._bytes)} byte tokens; there must be 256"
            )
        apart = set(vocab.of_type(TokenType.BYTE, TokenType.CONTROL, TokenType.UNKNOWN))
        costs = {
            text: (_cost(scores[i], i), i) for i, text in enumerate(vocab.tokens) if i not in apart
        }
        self._matches = Matches({text: entry for text, entry in costs.items() if entry[0] < NEVER})

    def encode(self, text: str, *, prefix: bool = False) -> list[int]:  # noqa: ARG002
        """The ids of a text, without its byte order mark."""
        text = text.removeprefix(BOM)
        costs = [0] * (len(text) + 1)
        first: list[tuple[int, int | None]] = [(1, None)] * len(text)  # length and id
        for at in reversed(range(len(text))):
            least = math.inf
            for length, (cost, token_id) in self._matches.starting_at(text, at):
                if costs[at + length] + cost < least:
                    least = costs[at + length] + cost
                    costs[at], first[at] = least, (length, token_id)
            if costs[at + 1] + UNKNOWN < least:
                costs[at], first[at] = costs[at + 1] + UNKNOWN, (1, None)
        ids: list[int] = []
        at = 0
        while at < len(text):
            length, own = first[at]
            if own is None:
                ids += [self._bytes[byte] for byte in text[at].encode()]
            else:
                ids.append(own)
            at += length
        return ids

    def piece_bytes(self, token_id: int) -> bytes:
        """The bytes of a token."""
        return self._tokens[token_id].encode()


def _cost(score: float, i: int) -> int:
    """Rounded half away from zero, as C does."""
    exact = float(np.float32(score)) * SCALE
    cost = -int(math.copysign(math.floor(abs(exact) + 0.5), exact))
    if abs(cost) > MOST:
        raise TokenizerError(f"tokenizer.ggml.scores[{i}] is too large")
    return cost
