"""A target without weights: a function of the tokens it sees, and greedy speculation with it."""

import hashlib
from collections.abc import Callable, Sequence

from engine.speculation.drafter import TEXT, Draft, Drafter, Verification

Target = Callable[[tuple[int, ...]], int]  # from the context to the likeliest next token


def fickle(context: int, vocab: int, seed: int = 0) -> Target:
    """A target whose next token is a random function of the last `context` tokens."""

    def argmax(seen: tuple[int, ...]) -> int:
        digest = hashlib.blake2b(repr((seed, seen[-context:])).encode(), digest_size=4).digest()
        return int.from_bytes(digest, "little") % vocab

    return argmax


def alone(target: Target, prompt: Sequence[int], count: int) -> list[int]:
    """The target's own continuation of the prompt, token by token."""
    text = list(prompt)
    for _ in range(count):
        text.append(target(tuple(text)))
    return text


def verify(target: Target, text: Sequence[int], draft: Draft) -> Verification:
    """Greedy verification: accept the likeliest tokens, from the text on."""

    def argmax(node: int) -> int:
        return target((*text, *(draft.tokens[i] for i in draft.path(node))))

    tokens, node = [], TEXT
    children = {(p, t): i for i, (p, t) in enumerate(zip(draft.parents, draft.tokens, strict=True))}
    while True:
        tokens.append(argmax(node))
        if (node, tokens[-1]) not in children:
            return Verification(tuple(tokens), argmax)
        node = children[node, tokens[-1]]


def speak(
    target: Target, drafter: Drafter, prompt: Sequence[int], count: int, most: int
) -> tuple[list[int], int]:
    """At least `count` tokens after the prompt, drafted `most` at a time; and the steps."""
    text, steps = list(prompt), 0
    drafter.begin(prompt)
    while len(text) < len(prompt) + count:
        draft = drafter.draft(text, most)
        assert len(draft) <= most
        step = verify(target, text, draft)
        text += step.tokens
        drafter.verified(step)
        steps += 1
    return text, steps


def nobody_asks(node: int) -> int:
    raise AssertionError(node)
