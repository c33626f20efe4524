"""Negative log-likelihood of each token of a passage, and divergence from a base model."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from engine.engine import Engine
from engine.perplexity.text import Passage, PerplexityError
from engine.sampling.chain import sampling_spec
from kernels.call import bind
from reference.op import Arguments, Array

OPS = ("log_sum_exp", "quantise_log_probabilities", "kl_divergence")


@dataclass(frozen=True, slots=True)
class Coded:
    """Log-probabilities of the whole vocabulary after each scored token, in 16 bits: codes uint16
    [scored, vocab] and lines float32 [scored, 2] (reference/log_probabilities.py)."""

    codes: Array
    lines: Array

    @classmethod
    def empty(cls, scored: int, vocab: int) -> "Coded":
        return cls(np.empty((scored, vocab), np.uint16), np.empty((scored, 2), np.float32))

    def of(self, tokens: Array) -> Array:
        """NLL of the actual tokens, float64 [scored] in nats."""
        scale, least = self.lines.astype(np.float64).T
        return np.asarray(scale * self.codes[np.arange(len(tokens)), tokens] + least)


@dataclass(frozen=True, slots=True)
class Compared:
    """Against a base, for each scored token: its base NLL in nats, the KL divergence from the base
    in nats (float64 [scored]), and whether both have the same argmax."""

    nll: Array
    divergence: Array
    same_top: Array


@dataclass(frozen=True, slots=True)
class Scores:
    """NLL in nats, float64 [scored], of a passage's scored tokens."""

    nll: Array
    base: Compared | None = None


class Scorer:
    """Scores passages with an engine, whose cache is cleared."""

    def __init__(self, engine: Engine) -> None:
        self.engine, model = engine, engine.model
        vocab = model.config.vocab
        needs = {op: sampling_spec(op, vocab) for op in OPS}
        kernels = model.dispatcher.choose(list(needs.values()), model.options.progress.certified)
        for kernel in kernels.values():
            kernel.share.compile()  # certified now, not while the first passage waits
        self._row, self._out = np.empty(vocab, np.float32), np.empty(1)
        self._codes, self._line = np.empty(vocab, np.uint16), np.empty(2, np.float32)
        logits: Arguments = {"logits": self._row}
        coded: Arguments = {"codes": self._codes, "line": self._line}
        out = {"out": self._out}

        def bound(op: str, inputs: Arguments, outputs: Arguments) -> Callable[[], None]:
            return partial(bind(kernels[needs[op]], inputs, outputs), 1, (0,))

        self._normalise = bound("log_sum_exp", logits, out)
        self._quantise = bound("quantise_log_probabilities", logits, coded)
        self._diverge = bound("kl_divergence", logits | coded, out)

    def read(
        self, passage: Passage, base: Coded | None = None, keep: Coded | None = None
    ) -> Scores:
        """Predict each token from those before it; compare with a base's log-probabilities of the
        passage, or fill `keep` for later comparisons."""
        tokens = np.array(passage.scored_tokens)
        nll, divergence = np.empty(len(tokens)), np.empty(len(tokens))
        same = np.empty(len(tokens), bool)
        for begin, rows in self._logits(passage):
            for i, row in enumerate(rows, begin):
                np.copyto(self._row, row)
                self._normalise()
                nll[i] = self._out[0] - row[tokens[i]]
                if keep is not None:
                    self._quantise()
                    keep.codes[i], keep.lines[i] = self._codes, self._line
                if base is not None:
                    self._codes[:], self._line[:] = base.codes[i], base.lines[i]
                    self._diverge()
                    divergence[i] = self._out[0]
                    same[i] = row.argmax() == self._codes.argmax()
        return Scores(nll, Compared(-base.of(tokens), divergence, same) if base else None)

    def _logits(self, passage: Passage) -> Iterator[tuple[int, Array]]:
        """Scored logits [n, vocab], valid until the next are requested, with the number of those
        before; in steps as large as the model takes."""
        model, tokens, first = self.engine.model, passage.tokens, passage.first
        last = len(tokens) - 1  # nothing follows the last token
        if not 0 <= first < last:
            raise PerplexityError(f"a passage of {len(tokens)} tokens has none behind {first + 1}")
        if last > model.cells.capacity:
            raise PerplexityError(
                f"a passage has {len(tokens)} tokens, the context holds {model.cells.capacity}"
            )
        self.engine.reset()
        try:
            done = 0
            for rows in self.engine.text.rows(tokens[:last], first, self.engine.timings.prompt):
                yield done, rows
                done += len(rows)
        finally:
            self.engine.reset()
