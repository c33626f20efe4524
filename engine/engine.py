"""The engine: a model, its tokenizer and samplers, from a prompt to text."""

import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from engine.chat import ChatError, ChatTemplate
from engine.checks import check_generation, check_prompt
from engine.completion import Completion, Piece, Row
from engine.config import ModelError
from engine.embedded import resolve
from engine.gguf_file import GGUFFile
from engine.held_text import HeldText
from engine.model import Model
from engine.options import Options
from engine.sampler import Sampler
from engine.samplers import Samplers
from engine.sampling_chain import needed_ops
from engine.sampling_params import SamplingParams
from engine.speculation import build
from engine.speculation.settings import Linear, Settings
from engine.speculation.speculate import Speculation
from engine.timings import Timings
from engine.tokenizer import Tokenizer


class Engine:
    """Continues text with a GGUF model, through certified kernels only.

    >>> with Engine.load("model.gguf", threads=2) as engine:
    ...     for piece in engine.generate("Once upon a time", SamplingParams(max_tokens=64)):
    ...         print(piece.text, end="")

    The cache keeps what was evaluated: a prompt that begins as the last one did is only evaluated
    from where it differs, with the same result bit for bit.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.samplers = Samplers(model, tokenizer)
        self.text = HeldText(model)
        self.timings = Timings.empty()
        self._draft: Engine | None = None
        self._speculation: Speculation | None = None
        self._sampler: Sampler | None = None  # the one that drew last
        self._restored: dict[str, Any] | None = None  # or a session's, before anything is drawn
        self._cancelled = threading.Event()
        self._generation = 0  # the latest; an older one may not go on

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: Options | None = None,
        *,
        draft: str | Path | None = None,
        speculation: Settings | None = None,
        sampling: SamplingParams | None = None,
        **overrides: Any,
    ) -> "Engine":
        """Open a GGUF file (or an embedded model by name), certify what its nodes need, pack its
        weights.

        `overrides` are fields of Options, e.g. `threads=2, context=1024, strict=True`. With a
        `draft` model, or another kind of `speculation`, tokens are drafted and verified several at
        a time (engine/speculation/settings.py); the text is the same. Kernels that `sampling`
        needs are certified with the model's: others are when they are first asked for.
        """
        started = time.perf_counter()
        options = replace(options or Options(), **overrides)
        if draft is not None and speculation is None:
            speculation = Linear()
        if speculation:
            options = build.with_room(options, speculation)
        with ExitStack() as opened:
            drafting = None
            if draft is not None:  # first, so that a budget of memory counts what it takes
                drafting = opened.enter_context(cls._alone(draft, options.of_a_draft()))
                if options.ram_budget:
                    drafting.model.touch()
            engine = opened.enter_context(cls._alone(path, options, sampling))
            engine._draft = drafting
            if speculation:
                engine.speculation = build.speculation(speculation, engine, drafting)
            opened.pop_all()
        engine.timings.load.seconds = time.perf_counter() - started
        return engine

    @classmethod
    def _alone(
        cls, path: str | Path, options: Options, sampling: SamplingParams | None = None
    ) -> "Engine":
        """Without a draft model."""
        path = resolve(path)
        file = GGUFFile(path)
        try:  # the tokenizer first, so that a budget of memory is divided among what is left
            tokenizer = Tokenizer.from_metadata(file.metadata)
        except BaseException:
            file.close()
            raise
        model = Model(file, options, needed_ops(sampling or SamplingParams()))
        try:
            if tokenizer.vocab_size > model.config.vocab:
                raise ModelError(
                    f"{path}: the vocabulary has {tokenizer.vocab_size} tokens,"
                    f" the embedding {model.config.vocab} rows"
                )
        except BaseException:
            model.close()
            raise
        return cls(model, tokenizer)

    def close(self) -> None:
        """Free threads, caches and weights."""
        if self._draft:
            self._draft.close()
        self.model.close()

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def cancel(self) -> None:
        """Make the running generation stop after its present token; from any thread."""
        self._cancelled.set()

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """A prompt's tokens, special ones parsed, BOS as the model was trained to have it."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=True, parse_special=True)
        return list(prompt)

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        context_shift: bool = False,
        keep: int = 0,
        resume: bool = False,
    ) -> Generator[Piece, None, None]:
        """Continue a prompt (text, or token ids); pieces come as tokens are drawn.

        When the context is full, generation ends with finish_reason "length"; with
        `context_shift` the older half beyond the first `keep` tokens is forgotten and the rest
        evaluated anew. `resume` goes on with the sampler where the last generation, or a restored
        session, left it.
        """
        params = self.samplers.in_tokens(params or SamplingParams())
        tokens = self.encode(prompt)
        if params.truncate_prompt_tokens is not None:
            tokens = tokens[-params.truncate_prompt_tokens :]
        self._check(tokens)
        most = min(self.model.options.sequences, self.model.limits["outputs"])
        check_generation(params, most, self.model.cells.capacity, context_shift, keep, resume)
        self.samplers.bound(needed_ops(params, self._verifies))
        return self._generate(tokens, params, context_shift, keep, resume)

    def chat(
        self, messages: Sequence[Mapping[str, str]], params: SamplingParams | None = None
    ) -> Generator[Piece, None, None]:
        """The assistant's next message, by the model's own chat template."""
        return self.generate(self.encode_chat(messages), params)

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """A conversation's tokens."""
        source = self.model.metadata.get("tokenizer.chat_template")
        if not isinstance(source, str):
            raise ChatError("the model has no chat template (tokenizer.chat_template)")
        names = (self.tokenizer.bos_id, self.tokenizer.eos_id)
        bos, eos = ("" if token is None else self.tokenizer.piece(token) for token in names)
        template = ChatTemplate(source, bos, eos)
        text = template.render(messages)
        return self.tokenizer.encode(
            text, add_special=not template.writes_bos(text), parse_special=True
        )

    def logits(self, prompt: str | Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The logits after every token of a prompt, float32 [tokens, vocab]."""
        tokens = self.encode(prompt)
        self._check(tokens)
        self.reset()
        rows: list[np.ndarray[Any, Any]] = []
        self.model.evaluate(tokens, 0, every=True, each=lambda part: rows.append(part.copy()))
        self.text.held = tokens
        return np.concatenate(rows)

    def _check(self, tokens: Sequence[int]) -> None:
        check_prompt(tokens, self.tokenizer.vocab_size, self.model.cells.capacity)

    def reset(self) -> None:
        """Forget what the cache holds."""
        self.settle()
        self.text.clear()

    @property
    def speculation(self) -> Speculation | None:
        """How tokens are drafted; None: not at all."""
        return self._speculation

    @speculation.setter
    def speculation(self, speculation: Speculation | None) -> None:
        self.settle()
        self._speculation = speculation

    @property
    def _verifies(self) -> bool:
        """Whether drafts are drawn, and verified by what the target draws from."""
        return self._speculation is not None and self._speculation.verifier is not None

    def settle(self) -> None:
        """Let the cache hold the cells of `text` and no others: a generation that waits between two
        tokens may have a draft there."""
        if self._speculation:
            self._speculation.settle()

    @property
    def sampler_state(self) -> dict[str, Any] | None:
        """Where the sampler of the last generation stands: what `resume` goes on from."""
        return self._sampler.state() if self._sampler else self._restored

    @sampler_state.setter
    def sampler_state(self, state: dict[str, Any] | None) -> None:
        self._sampler, self._restored = None, state

    def _generate(
        self,
        prompt: list[int],
        params: SamplingParams,
        context_shift: bool,
        keep: int,
        resume: bool,
    ) -> Generator[Piece, None, None]:
        model, timings = self.model, self.timings
        timings.start()
        self._cancelled.clear()
        self._generation += 1
        generation = self._generation
        self.settle()
        for sequence in range(1, model.options.sequences):
            model.cells.remove(sequence)
        completions = [self._completion(i, prompt, params, resume) for i in range(params.n)]
        scored = params.prompt_logprobs is not None
        first, prompt_logprobs = self.text.read(
            prompt, timings.prompt, self.samplers.kernel("log_sum_exp") if scored else None
        )
        for completion in completions[1:]:
            model.cells.copy(0, completion.index)
        rows: Sequence[Row] = [first] * len(completions)
        live = completions
        drafts = self._speculation if params.n == 1 else None
        if drafts:
            drafts.begin(prompt)
            timings.speculation = drafts.timings
        try:
            while live:
                pieces: list[Piece] = []
                for completion, row in zip(live, rows, strict=True):
                    with timings.sample.measure(1):
                        if drafts and isinstance(row, np.ndarray):
                            piece = drafts.sample(completion, row, prompt_logprobs)
                        else:
                            piece = completion.sample(row, prompt_logprobs)
                    if completion.index == 0:
                        self.text.drawn = completion.tokens[-1:]
                        self._sampler = completion.sampler
                    prompt_logprobs = None
                    pieces.append(piece)
                going = [completion for completion in live if not completion.finished]
                if not self._has_room(going, drafts) and not context_shift:
                    pieces = [
                        piece if completion.finished else completion.ended(piece, "length")
                        for completion, piece in zip(live, pieces, strict=True)
                    ]
                    going = []
                for piece in pieces:
                    yield piece
                    if generation != self._generation:
                        raise RuntimeError(
                            "this generation cannot go on: another has begun on the same engine"
                        )
                live = going
                if live and self._cancelled.is_set():
                    yield from (completion.cancelled() for completion in live)
                    return
                if live and drafts and drafts.is_ahead(token := live[0].tokens[-1]):
                    rows = [drafts.go_on(token)]
                    self.text.go_on(token)
                    timings.eval.tokens += 1
                    continue
                if live and model.cells.free < len(live):
                    self.text.shift(keep)
                if live:
                    with timings.eval.measure(len(live)):
                        rows = [drafts.step(live[0])] if drafts else self._step(live)
                    if live[0].index == 0:
                        self.text.go_on(live[0].tokens[-1])
        finally:
            if drafts and generation == self._generation:
                drafts.settle()

    def _has_room(self, live: Sequence[Completion], drafts: Speculation | None) -> bool:
        """Whether each of them can go on: a draft has its token, or there are cells for all, with
        those of a draft that has not."""
        if drafts and live and drafts.is_ahead(live[0].tokens[-1]):
            return True
        if drafts:
            drafts.settle()
        return self.model.cells.free >= len(live)

    def _completion(
        self, index: int, prompt: list[int], params: SamplingParams, resume: bool
    ) -> Completion:
        tokenizer = self.tokenizer
        seed = None if params.seed is None else params.seed + index
        sampler = self.samplers.of_text(replace(params, seed=seed), prompt, self._verifies)
        if resume and (state := self.sampler_state) is not None:
            sampler.restore(state)
            known = len(self.text.held) + len(self.text.drawn)
            for token in prompt[known:]:  # text that was added since
                sampler.accept(token)
        return Completion(index, params, sampler, tokenizer, tokenizer.eog_ids)

    def _step(self, live: Sequence[Completion]) -> Sequence[Row]:
        """One token of each live completion; their logits [vocab], valid until the next step, or
        what is wanted of them where they are on a device."""
        tokens = [completion.tokens[-1] for completion in live]
        positions = [self.model.cells.next_position(completion.index) for completion in live]
        sequences = [(completion.index,) for completion in live]
        wanted = range(len(live))
        if self.model.finds_likeliest and all(one.sampler.takes_likeliest for one in live):
            return self.model.likeliest(tokens, positions, sequences, wanted)
        return list(self.model.step(tokens, positions, sequences, wanted))
