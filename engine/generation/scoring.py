"""Log-likelihood of continuations, token by token."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from engine.checks import PromptError, check_prompt
from engine.generation.reading import Likelihoods
from engine.schedule.prompts import Prompt, is_single
from engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from engine.engine import Engine

Pair = tuple[list[int], list[int]]  # tokens of a prompt and of its continuation


@dataclass(frozen=True, slots=True)
class Score:
    """A continuation's tokens, the natural log-probability of each given the prompt and the tokens
    before it, and whether each is the most likely one."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    is_greedy: bool

    @property
    def cumulative_logprob(self) -> float:
        """The continuation's log-likelihood."""
        return math.fsum(self.logprobs)


def text_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode a text that may be continued: with BOS if the model uses it and the text does not have
    it, without EOS."""
    ids, bos = tokenizer.encode(text, add_special=False, parse_special=True), tokenizer.added_bos
    return ids if bos is None or ids[:1] == [bos] else [bos, *ids]


def context_start_id(tokenizer: Tokenizer) -> int | None:
    """The token before an empty context: BOS, or EOS if there is no BOS."""
    return tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id


def tokenize_pair(tokenizer: Tokenizer, prompt: str, continuation: str) -> Pair:
    """Tokenize both as lm-evaluation-harness does: trailing spaces of the prompt belong to the
    continuation, whose tokens are those of the whole text after as many as the prompt alone has,
    even if a token crosses the boundary. An empty prompt is `context_start_id`."""
    if not prompt:
        ids, begin = text_ids(tokenizer, continuation), context_start_id(tokenizer)
        given = ids[:1] if begin is None or ids[:1] == [begin] else [begin]
        return given, ids[1:] if given == ids[:1] else ids
    kept = prompt.rstrip()
    own = text_ids(tokenizer, kept)
    return own, text_ids(tokenizer, kept + prompt[len(kept) :] + continuation)[len(own) :]


def pairs_of(
    engine: "Engine", prompts: Prompt | Sequence[Prompt], continuations: Prompt | Sequence[Prompt]
) -> list[Pair]:
    """Encode and pair prompts and continuations; a single one is paired with each of the others.
    Raises `PromptError` before anything is evaluated."""
    several = [[each] if is_single(each) else list(each) for each in (prompts, continuations)]
    count = max(map(len, several))
    if any(len(each) not in (1, count) for each in several):
        had = " and ".join(str(len(each)) for each in several)
        raise PromptError(f"want as many prompts as continuations, or one of either: {had}")
    every = (each * count if len(each) == 1 else each for each in several)
    found = []
    for number, (prompt, continuation) in enumerate(zip(*every, strict=True)):
        try:
            found.append(_pair(engine, prompt, continuation))
        except ValueError as error:
            where = f"pair {number}: " if count > 1 else ""
            raise PromptError(f"{where}{error}") from None
    return found


def _pair(engine: "Engine", prompt: Prompt, continuation: Prompt) -> Pair:
    if isinstance(prompt, str) and isinstance(continuation, str):
        pair = tokenize_pair(engine.tokenizer, prompt, continuation)
    elif isinstance(prompt, str) or isinstance(continuation, str):
        raise PromptError("a prompt and its continuation must both be texts, or both token ids")
    else:
        pair = engine.encode(prompt), engine.encode(continuation)
    if not pair[0]:
        raise PromptError("the prompt is empty")
    if not pair[1]:
        raise PromptError("the continuation has no token of its own")
    check_prompt(pair[0] + pair[1][:-1], engine.tokenizer.vocab_size, engine.model.cells.capacity)
    check_prompt(pair[1][-1:], engine.tokenizer.vocab_size, 1)
    return pair


def readings(engine: "Engine", pairs: Sequence[Pair]) -> Iterator[tuple[int, Likelihoods]]:
    """Scoring requests by index of their pair, sorted so that shared prefixes are adjacent."""
    log_sum_exp = engine.samplers.kernel("log_sum_exp")
    for number in sorted(range(len(pairs)), key=lambda number: [*chain(*pairs[number])]):
        text, first = [*chain(*pairs[number])], len(pairs[number][0]) - 1
        yield number, Likelihoods(text, first, log_sum_exp)


def score(pair: Pair, read: Likelihoods) -> Score:
    """The score of a pair that was read."""
    return Score(tuple(pair[1]), tuple(read.logprobs), read.is_greedy)


def scores(engine: "Engine", pairs: Sequence[Pair]) -> Iterator[tuple[int, Score]]:
    """Yields the pairs' scores by index; shared prefixes are evaluated once."""
    text = engine.begin_reading()
    for number, reading in readings(engine, pairs):
        text.collect(reading, engine.timings.prompt)
        yield number, score(pairs[number], reading)
