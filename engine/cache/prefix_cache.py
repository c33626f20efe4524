"""Prefix cache of a single text: the tokens in sequence 0, and prefill from where they differ."""

from collections.abc import Iterator, Sequence

import numpy as np

from engine.generation.reading import Reading
from engine.generation.timings import Span
from engine.model import Model
from reference.op import Array


class PrefixCache:
    """`held` are the tokens in the KV cache; `drawn` is the sampled token after them that is not
    evaluated yet."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.held: list[int] = []
        self.drawn: list[int] = []

    def prefill(self, prompt: Sequence[int], span: Span, reading: Reading | None = None) -> Array:
        """Prefill a prompt, evaluating only what is not cached; returns the last logits [vocab].
        `reading` receives the logits of its tokens. Then the cache policy evicts, unless the prompt
        is the current text itself, being continued."""
        method = self._model.method
        left = method.is_decoding(0) and list(prompt) == self.held + self.drawn
        if not left:
            method.begin(0, len(prompt))
        first = reading.first if reading else len(prompt) - 1
        for logits in self._rows(prompt, first, span, left=left):
            if reading:
                reading.receive(logits)
        if not left:
            with span.measure(0):
                method.finish(0)
        return np.array(logits[-1])

    def collect(self, reading: Reading, span: Span) -> None:
        """Read a scoring request's text and pass it the rows."""
        for rows in self.rows(reading.tokens, reading.first, span, reading.hidden):
            reading.receive(rows)

    def rows(
        self, tokens: Sequence[int], first: int, span: Span, hidden: bool = False
    ) -> Iterator[Array]:
        """Read a text; yields its logits [n, vocab] after each token from index `first` on, or
        hidden states [n, hidden], in chunks that are valid until the next one. The cached prefix is
        reused, unless parts were evicted or read without full attention."""
        if self._model.method.is_partial(0):
            self.clear()
        self._model.method.begin_full(0)
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
        """Like `rows`; `left`: the text continues the current one as it is; `sparse`: use the
        method's sparse prefill, if it has one."""
        model, limits = self._model, self._model.limits
        step, cells, method = model.hidden if hidden else model.step, model.cells, model.method
        sparse = sparse and not left and method.stretch > 0
        begin = min(self._shared(tokens), first)
        if not left:
            begin = method.shareable(0, begin) if sparse else cells.reach(0, begin)
        cells.remove(0, begin=begin)
        if sparse:
            method.prefill_from(0, begin, len(tokens))
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
        """Length of the cached prefix; the last token of a prompt is always evaluated."""
        most = min(len(self.held), len(prompt) - 1)
        return next((i for i in range(most) if self.held[i] != prompt[i]), most)

    def append(self, token: int) -> None:
        """Record that the sampled token was evaluated."""
        self.held.append(token)
        self.drawn = []

    def set_held(self, tokens: Sequence[int]) -> None:
        """Set the cached tokens, after someone else has filled the cache."""
        self.held, self.drawn = list(tokens), []

    def shift(self, keep: int) -> None:
        """Context shift: drop the older half after the first `keep` tokens, recompute the rest."""
        forget = max(1, (len(self.held) - keep) // 2)
        kept = self.held[:keep] + self.held[keep + forget :]
        self.clear()
        self._model.method.begin(0, len(kept))
        if kept:
            self._model.evaluate(kept, 0)
        self.held = kept

    def clear(self) -> None:
        """Clear the KV cache."""
        self._model.cells.clear()
        self.held, self.drawn = [], []
