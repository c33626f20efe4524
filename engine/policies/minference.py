"""MInference (Jiang et al., arXiv 2407.02490): sparse attention for prefill, with one of three
patterns per head. What a head attends to is estimated from the prompt, chunk by chunk."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import ModelError
from engine.policies.policy import check_fields
from reference.attention.pattern_attention import BLOCK
from reference.attention.prompt_patterns import A_SHAPE, BLOCK_SPARSE, VERTICAL_SLASH
from reference.op import Array

# by their names in the authors' files, with the number of parameters
PATTERNS = {
    "stream_llm": (A_SHAPE, 2),
    "vertical_and_slash": (VERTICAL_SLASH, 2),
    "block_sparse": (BLOCK_SPARSE, 1),
}


@dataclass(frozen=True, slots=True)
class MInference:
    """`heads` is a file of patterns in the authors' format: a list with an entry for each block,
    {"0": ["vertical_and_slash", 1000, 6096, 1.0], ...}. Other heads attend to the best `columns`
    and `diagonals`, always including the `first` columns and the `recent` diagonals.

    A prompt is read in chunks of `stretch` tokens; the last `observers` tokens of each determine
    the best columns and diagonals.
    """

    columns: int = 1000
    diagonals: int = 6096
    first: int = 30
    recent: int = 30
    observers: int = 64
    stretch: int = 4096
    heads: str = ""

    def __post_init__(self) -> None:
        """Raise `ModelError` for invalid sizes."""
        check_fields(self)
        if self.recent < 1 or self.observers < 1:
            raise ModelError("MInference: recent and observers must be at least 1")
        if self.stretch < BLOCK or self.stretch % BLOCK:
            raise ModelError(
                f"MInference: stretch is {self.stretch}: want a multiple of {BLOCK}, the block size"
                " of queries"
            )

    def patterns(self, blocks: int, heads: int) -> list[tuple[Array, Array]]:
        """By block, the pattern of each head, int32 [heads], and its parameters, int32 [heads,
        2]."""
        given = _file(Path(self.heads)) if self.heads else []
        if given and len(given) != blocks:
            raise ModelError(
                f"{self.heads}: patterns for {len(given)} blocks, the model has {blocks}"
            )
        found = []
        for i in range(blocks):
            kinds = np.full(heads, VERTICAL_SLASH, np.int32)
            sizes = np.full((heads, 2), (self.columns, self.diagonals), np.int32)
            for head, (kind, numbers) in (given[i] if given else {}).items():
                if head >= heads:
                    raise ModelError(f"{self.heads}: block {i} has no head {head}, only {heads}")
                kinds[head], sizes[head, : len(numbers)] = kind, numbers
            found.append((kinds, sizes))
        return found


Patterns = list[Mapping[int, tuple[int, list[int]]]]


@cache
def _file(path: Path) -> Patterns:
    try:
        blocks: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not a file of patterns: {error}") from None
    if not isinstance(blocks, list) or not all(isinstance(own, dict) for own in blocks):
        raise ModelError(f"{path}: not a file of patterns: want a list with an entry per block")
    return [
        {_head(path, head): _pattern(path, i, head, given) for head, given in own.items()}
        for i, own in enumerate(blocks)
    ]


def _head(path: Path, head: str) -> int:
    if not head.isdecimal():
        raise ModelError(f"{path}: {head!r} is not the index of a head")
    return int(head)


def _pattern(path: Path, block: int, head: str, given: Any) -> tuple[int, list[int]]:
    name = given[0] if isinstance(given, list) and given else given
    kind, count = PATTERNS.get(name, (0, 0)) if isinstance(name, str) else (0, 0)
    numbers = given[1 : count + 1] if count else []
    if not count or len(numbers) < count or not all(_fits(number) for number in numbers):
        raise ModelError(
            f"{path}: block {block}, head {head}: {given!r:.60} is none of {', '.join(PATTERNS)}"
            " with its numbers"
        )
    if (kind == A_SHAPE and numbers[1] < 1) or (kind == BLOCK_SPARSE and numbers[0] < 1):
        raise ModelError(f"{path}: block {block}, head {head}: attends to nothing")
    return kind, numbers


def _fits(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < 2**31


def parse_prompt_attention(text: str) -> MInference:
    """Parse a text such as `minference:columns=1000,heads=FILE`."""
    name, _, given = text.partition(":")
    if name != "minference":
        raise ModelError(f"prompt_attention is {name!r}: want minference")
    known, numbers = [field.name for field in fields(MInference)], dict[str, Any]()
    for part in given.split(",") if given else ():
        key, _, value = part.partition("=")
        if key not in known or (key != "heads" and not value.isdecimal()):
            raise ModelError(
                f"prompt_attention minference has {part!r}: want NAME=NUMBER, of"
                f" {', '.join(known[:-1])}, or heads=FILE"
            )
        numbers[key] = value if key == "heads" else int(value)
    return MInference(**numbers)
