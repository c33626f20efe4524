"""A sampler's state between tokens: token counts, random numbers, mirostat's mu."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.sampling.params import SamplingError, SamplingParams
from reference.op import Array


class SamplerState:
    """State for a text that begins with `prompt`. Token counts, int32 [vocab], are over the range
    of the repetition penalty (`repeated`) and of the other penalties (`counts`).

    Different `stream`s have independent random numbers, even with the same seed.
    """

    def __init__(
        self, params: SamplingParams, vocab: int, prompt: Sequence[int], stream: tuple[int, ...]
    ) -> None:
        self._stream = stream
        self.reseed(params.seed)
        self.mu = 2 * params.mirostat_tau
        self.vocab = vocab
        self.repeated = np.zeros(vocab, np.int32)
        self._last = params.penalty_last_n
        self.counts = self.repeated.copy() if self._last is None else self.repeated
        self._read(prompt, ())

    def reseed(self, seed: int | Sequence[int] | None) -> None:
        """Restart the random numbers from this seed; None: unpredictably."""
        seeds = np.random.SeedSequence(seed, spawn_key=self._stream)
        self.random = np.random.Generator(np.random.PCG64(seeds))

    def _read(self, prompt: Sequence[int], generated: Sequence[int]) -> None:
        self.history: list[int] = []
        self.repeated[:] = 0
        for token in prompt:
            self.accept(token)
        self._prompt = len(prompt)
        if self._last is None:
            self.counts[:] = 0
        for token in generated:
            self.accept(token)

    @property
    def generated(self) -> list[int]:
        """The accepted tokens after the prompt."""
        return self.history[self._prompt :]

    def last(self, count: int) -> Array:
        """The last `count` tokens of the text, int32; all if `count` is negative."""
        return np.array(self.history if count < 0 else self.history[-count:], np.int32)

    def accept(self, token: int) -> None:
        """Append a token to the text."""
        if not 0 <= token < self.vocab:
            raise SamplingError(f"token {token} is outside the vocabulary of {self.vocab}")
        self.history.append(int(token))
        self.repeated[token] += 1
        last = self._last
        if last is None:
            self.counts[token] += 1
        elif 0 <= last < len(self.history):
            self.repeated[self.history[-last - 1]] -= 1

    def state(self) -> dict[str, Any]:
        """The state, JSON-serializable; with the same parameters, `restore` continues from it."""
        return {
            "history": list(self.history),
            "prompt": self._prompt,
            "mu": self.mu,
            "random": self.random.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved `state`."""
        try:
            history, prompt = list(state["history"]), int(state["prompt"])
            mu, random = float(state["mu"]), state["random"]
            self.random.bit_generator.state = random
        except (KeyError, TypeError, ValueError) as error:
            raise SamplingError(f"not a sampler state: {error}") from error
        self.mu = mu
        self._read(history[:prompt], history[prompt:])
