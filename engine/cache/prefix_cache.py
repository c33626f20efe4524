"""The text whose cells a model's cache holds, in sequence 0, and how it goes on."""

from collections.abc import Iterator, Sequence

import numpy as np

from engine.generation.reading import Reading
from engine.generation.timings import Span
from engine.model import Model
from reference.op import Array


class PrefixCache:
    """`held` are the tokens whose cells the cache has; `drawn` is the one behind them, until a step
    reads it."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.held: list[int] = []
        self.drawn: list[int] = []

    def read(self, prompt: Sequence[int], span: Span, beside: Reading | None = None) -> Array:
        """Hold a prompt, of which only what is not held yet is evaluated: the last logits [vocab].
        Whoever reads it `beside` has its own rows of them. What a policy does not keep of it is
        evicted then, unless it is a text that was left between two tokens and is gone on with."""
        method = self._model.method
        left = method.is_begun(0) and list(prompt) == self.held + self.drawn
        if not left:
            method.begin(0, len(prompt))
        first = beside.first if beside else len(prompt) - 1
        for logits in self._rows(prompt, first, span, left=left):
            if beside:
                beside.take(logits)
        if not left:
            with span.measure(0):
                method.finish(0)
        return np.array(logits[-1])

    def take(self, reading: Reading, span: Span) -> None:
        """Hold the text of a reading, which gets its rows."""
        for rows in self.rows(reading.tokens, reading.first, span, reading.hidden):
            reading.take(rows)

    def rows(
        self, tokens: Sequence[int], first: int, span: Span, hidden: bool = False
    ) -> Iterator[Array]:
        """Hold a text, and give its logits [n, vocab] behind each token from `tokens[first]` on, or
        what they are computed from [n, hidden], in parts that are valid until the next is asked
        for. What is held of the tokens before is not evaluated anew, unless a policy has evicted
        some of it, or its tokens have not seen all."""
        if self._model.method.is_spoilt(0):
            self.clear()
        self._model.method.whole(0)
        return self._rows(tokens, first, span, hidden, sparse=False)

    def _rows(
        self,
        tokens: Sequence[int],
        first: int,
        span: Span,
        hidden: bool = False,
        left: bool = False,
        sparse: bool = True,
    ) -> Iterator[Array]:
        """The same of a text that will be gone on with, or was `left` and is; a prompt's is read in
        stretches where its attention is `sparse`."""
        model, limits = self._model, self._model.limits
        step, cells, method = model.hidden if hidden else model.step, model.cells, model.method
        sparse = sparse and not left and method.stretch > 0
        begin = min(self._shared(tokens), first)
        if not left:
            begin = method.shares(0, begin) if sparse else cells.reach(0, begin)
        cells.remove(0, begin=begin)
        if sparse:
            method.reads(0, begin, len(tokens))
        chunk = method.stretch if sparse else limits["tokens"]
        self.held, self.drawn = self.held[:begin], []
        while begin < len(tokens):
            end = max(first, begin) + limits["outputs"]
            end = min(begin + chunk, end, len(tokens))
            where, wanted = range(begin, end), range(max(first - begin, 0), end - begin)
            with span.measure(len(where)):
                found = step(tokens[begin:end], where, [(0,)] * len(where), wanted)
            self.held = list(tokens[:end])
            begin = end
            if wanted:
                yield found

    def _shared(self, prompt: Sequence[int]) -> int:
        """How many tokens of the prompt need no evaluation; the last one always does."""
        most = min(len(self.held), len(prompt) - 1)
        return next((i for i in range(most) if self.held[i] != prompt[i]), most)

    def go_on(self, token: int) -> None:
        """A step has read the token that was drawn."""
        self.held.append(token)
        self.drawn = []

    def hold(self, tokens: Sequence[int]) -> None:
        """These are the tokens whose cells the cache has, by somebody else's doing."""
        self.held, self.drawn = list(tokens), []

    def shift(self, keep: int) -> None:
        """Forget the older half beyond the first `keep` tokens; evaluate the rest anew."""
        forget = max(1, (len(self.held) - keep) // 2)
        kept = self.held[:keep] + self.held[keep + forget :]
        self.clear()
        self._model.method.begin(0, len(kept))
        if kept:
            self._model.evaluate(kept, 0)
        self.held = kept

    def clear(self) -> None:
        """Forget what the cache holds."""
        self._model.cells.clear()
        self.held, self.drawn = [], []
