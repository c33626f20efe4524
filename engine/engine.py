"""The engine: model, tokenizer and samplers; takes prompts, gives text."""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import chain
from numbers import Integral
from pathlib import Path
from typing import Any, Unpack, cast, overload

import numpy as np

from engine.cache.prefix_cache import PrefixCache
from engine.cache.session import restore, save
from engine.chat import ChatTemplate, chat_template_source
from engine.checks import PromptError, check_generation, check_prompt
from engine.closeable import Closeable
from engine.config import ModelError
from engine.embedded import resolve
from engine.errors import BusyError, EngineError
from engine.generation.completion import Completion, Piece
from engine.generation.decoding import PlainDecoding, SingleTextStepper
from engine.generation.embedding import check_pooling, embeddings, encode_texts, stack_embeddings
from engine.generation.results import RequestOutput
from engine.generation.scoring import Score, pairs_of, scores
from engine.generation.timings import Timings
from engine.gguf.file import GGUFFile
from engine.model import Model
from engine.options import Fields, Options
from engine.sampling.chain import needed_ops
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Sampler
from engine.sampling.samplers import Samplers
from engine.schedule.prompts import QUEUED_PER_SEQUENCE, Prompt, is_single, make_requests
from engine.schedule.request import Request
from engine.schedule.scheduler import Scheduler, Serving, StepOutput, Stepper
from engine.speculation import build
from engine.speculation.settings import Linear, Settings
from engine.speculation.speculate import Speculation
from engine.tokenizer import Tokenizer


class Engine(Closeable):
    """Generates text with a GGUF model, using certified kernels only.

    >>> with Engine.load("model.gguf", threads=2) as engine:
    ...     print(engine.generate("Once upon a time", SamplingParams(max_tokens=64)).text)
    ...     for piece in engine.stream("Once upon a time", SamplingParams(max_tokens=64)):
    ...         print(piece.text, end="")

    The KV cache is reused: a prompt that shares a prefix with the last one is evaluated from where
    they differ, with bit-identical results.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.samplers = Samplers(model, tokenizer)
        self.text = PrefixCache(model)
        self.timings = Timings.empty()
        self._draft: Engine | None = None
        self._plain = PlainDecoding(model)
        self._speculation: Speculation | None = None
        self._sampler: Sampler | None = None  # of the last generation
        self._restored: dict[str, Any] | None = None  # a restored session's, until the first draw
        self._cancelled = threading.Event()
        self._generation = 0  # number of the latest; older ones are stale

    @classmethod
    def load(
        cls,
        path: str | Path,
        options: Options | None = None,
        *,
        draft: str | Path | None = None,
        speculation: Settings | None = None,
        sampling: SamplingParams | None = None,
        **overrides: Unpack[Fields],
    ) -> "Engine":
        """Open a GGUF file (or an embedded model by name, or `hf:OWNER/REPO:FILE`), certify the
        kernels of its nodes, pack its weights.

        `overrides` are fields of Options, e.g. `threads=2, context=1024, strict=True`. With a
        `draft` model, or another kind of `speculation`, several tokens are drafted and verified at
        a time (engine/speculation/settings.py); the text is the same. Kernels that `sampling`
        needs are certified with the model's; others when they are first used.
        """
        started = time.perf_counter()
        if not isinstance(options, Options | None):
            raise ModelError(f"options must be an Options, got {options!r:.60}")
        if not isinstance(speculation, Settings | None):
            raise ModelError(f"speculation must be a Linear, Tree etc., got {speculation!r:.60}")
        options = replace(options or Options(), **overrides)
        if draft is not None and speculation is None:
            speculation = Linear()
        if speculation:
            options = build.with_draft_capacity(options, speculation)
        with ExitStack() as opened:
            drafting = None
            if draft is not None:  # first, so that ram_budget counts its memory
                drafting = opened.enter_context(cls._load_one(draft, options.for_draft_model()))
                if options.ram_budget:
                    for tokens in (1, drafting.model.limits["tokens"]):
                        drafting.model.plan_for(tokens).touch()
            engine = opened.enter_context(cls._load_one(path, options, sampling))
            engine._draft = drafting
            if speculation:
                engine.speculation = build.make_speculation(speculation, engine, drafting)
            opened.pop_all()
        engine.timings.load.seconds = time.perf_counter() - started
        return engine

    @classmethod
    def _load_one(
        cls, path: str | Path, options: Options, sampling: SamplingParams | None = None
    ) -> "Engine":
        """Load one model, without a draft model."""
        path = resolve(path)
        file = GGUFFile(path)
        try:  # first, so that ram_budget counts the tokenizer's memory
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

    def cancel(self) -> None:
        """Stop the running generation after its current token; may be called from any thread."""
        self._cancelled.set()

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Encode a prompt: special tokens are parsed, BOS is added if the model uses it."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt, add_special=True, parse_special=True)
        if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
            raise PromptError(f"a prompt must be a text or token ids, got {prompt!r:.60}")
        if bad := [token for token in prompt if not isinstance(token, Integral)]:
            raise PromptError(f"a prompt must be a text or token ids; it has {bad[0]!r}")
        return list(map(int, prompt))

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is a sequence of texts
        self, prompts: Prompt, params: SamplingParams | None = None, *, priorities: None = None
    ) -> RequestOutput: ...
    @overload
    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priorities: Sequence[int] | None = None,
    ) -> list[RequestOutput]: ...
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priorities: Sequence[int] | None = None,
    ) -> RequestOutput | list[RequestOutput]:
        """Continue a prompt (text, or token ids), or many at once: a result for each, in order.

        `params` are shared, or one for each prompt. Of many prompts up to `sequences` (an option)
        run at once, those of the smallest `priorities` first. Each answer is bit-identical to that
        of its prompt alone. A prompt that fails has finish_reason "error" and the reason in
        `error`; a single prompt raises the error instead. Speculative decoding is used for single
        prompts only.
        """
        if not is_single(prompts):
            many = cast(Sequence[Prompt], prompts)
            found = list(self.as_completed(many, params, priorities=priorities))
            return sorted(found, key=lambda result: int(result.request_id))
        asked = params or SamplingParams()
        if not isinstance(asked, SamplingParams):
            raise PromptError(f"params of one prompt must be a SamplingParams, got {asked!r:.60}")
        request = Request("0", prompts, asked)
        stream = self.stream(prompts, asked)
        request.tokens = self._prompt(prompts, asked)
        for piece in stream:
            request.add_piece(piece)
        read = self.timings.prompt
        request.started, request.cached = request.arrived, len(request.tokens) - read.tokens
        return request.result(self.tokenizer)

    def as_completed(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priorities: Sequence[int] | None = None,
    ) -> Iterator[RequestOutput]:
        """Like `generate` for many prompts, but yields each result when it is complete; its
        `request_id` is the prompt's index, from "0". Prompts are consumed lazily, so they may be
        unlimited in number."""
        requests = make_requests(prompts, params, priorities)
        return (done.result(self.tokenizer) for done in self.serve_completed(requests))

    def stream(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        context_shift: bool = False,
        keep: int = 0,
        resume: bool = False,
    ) -> Generator[Piece, None, None]:
        """Continue a prompt (text, or token ids); yields pieces as tokens are sampled.

        When the context is full, generation ends with finish_reason "length"; with
        `context_shift` the older half after the first `keep` tokens is dropped and the rest is
        evaluated again. `resume` continues with the sampler state of the last generation, or of a
        restored session.
        """
        params = self.samplers.in_tokens(params or SamplingParams())
        tokens = self._prompt(prompt, params)
        self._check(tokens)
        most = min(self.model.options.sequences, self.model.limits["outputs"])
        check_generation(params, most, self.model.cells.capacity, context_shift, keep, resume)
        if context_shift and self.model.method.evicts:
            raise PromptError("context_shift and an evicting kv_policy exclude each other")
        self._check_sparse(params, context_shift)
        self.samplers.bind_kernels(needed_ops(params, self._verifies))
        if params.structured_outputs:  # fail before anything is evaluated
            self.samplers.grammars.constraint(params.structured_outputs)
        request = Request("0", tokens, params, tokens=tokens)
        steps = (
            self._scheduler if params.n > 1 else partial(self._stepper, context_shift, keep, resume)
        )
        return self._pieces(request, steps)

    def _check_sparse(self, params: SamplingParams, context_shift: bool = False) -> None:
        """Raise `PromptError` for parameters that do not work with sparse prefill attention."""
        if self.model.method.stretch and (context_shift or params.prompt_logprobs is not None):
            what = "context_shift" if context_shift else "prompt_logprobs"
            raise PromptError(
                f"{what} needs full attention: load the engine without prompt_attention"
            )

    def _prompt(self, prompt: Prompt, params: SamplingParams) -> list[int]:
        """A prompt's tokens, truncated as `params` say."""
        tokens = self.encode(prompt)
        return tokens[-(params.truncate_prompt_tokens or 0) :]

    def chat(
        self, messages: Sequence[Mapping[str, str]], params: SamplingParams | None = None
    ) -> RequestOutput:
        """Generate the assistant's next message, with the model's chat template."""
        return self.generate(self.encode_chat(messages), params)

    def stream_chat(
        self, messages: Sequence[Mapping[str, str]], params: SamplingParams | None = None
    ) -> Generator[Piece, None, None]:
        """Like `chat`, but yields pieces as tokens are sampled."""
        return self.stream(self.encode_chat(messages), params)

    def encode_chat(
        self, messages: Sequence[Mapping[str, str]], template: str | None = None
    ) -> list[int]:
        """Encode a conversation with the model's chat template, or with a template's source."""
        chosen = self.chat_template(template)
        text = chosen.render(messages)
        return self.tokenizer.encode(
            text, add_special=not chosen.writes_bos(text), parse_special=True
        )

    def chat_template(self, source: str | None = None) -> ChatTemplate:
        """The model's chat template, or one with this `source`, with the model's BOS and EOS."""
        source = source or chat_template_source(self.model.metadata)
        names = (self.tokenizer.bos_id, self.tokenizer.eos_id)
        bos, eos = ("" if token is None else self.tokenizer.piece(token) for token in names)
        return ChatTemplate(source, bos, eos)

    def logits(self, prompt: str | Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Returns the logits after every token of a prompt, float32 [tokens, vocab]."""
        tokens = self.encode(prompt)
        self._check(tokens)
        self.reset()
        rows: list[np.ndarray[Any, Any]] = []
        self.model.evaluate(tokens, 0, every=True, each=lambda part: rows.append(part.copy()))
        self.text.held = tokens
        return np.concatenate(rows)

    @overload
    def score(self, prompts: str, continuations: str) -> Score: ...
    @overload
    def score(
        self, prompts: Prompt | Sequence[Prompt], continuations: Prompt | Sequence[Prompt]
    ) -> Score | list[Score]: ...
    def score(
        self, prompts: Prompt | Sequence[Prompt], continuations: Prompt | Sequence[Prompt]
    ) -> Score | list[Score]:
        """Log-likelihoods of continuations given their prompts, token by token. Texts are tokenized
        as by lm-evaluation-harness; token ids are taken as they are.

        Lists are matched in order; a single prompt (or continuation) is paired with each of many.
        Invalid input raises `PromptError` before anything is evaluated.
        """
        pairs = pairs_of(self, prompts, continuations)
        found = dict(scores(self, pairs))
        if is_single(prompts) and is_single(continuations):
            return found[0]
        return [found[number] for number in range(len(pairs))]

    def embed(
        self,
        texts: Prompt | Sequence[Prompt],
        pooling: str = "mean",
        *,
        normalize: bool = True,
    ) -> Any:
        """Embed texts by pooling the last norm's results: float32 [hidden] for one text, [texts,
        hidden] for many. `pooling` is "mean", "last", "cls" (the first token) or "none": all
        tokens, [tokens, hidden], in a list for many texts. With `normalize` vectors have length
        1."""
        check_pooling(pooling)
        one = is_single(texts)
        tokens = encode_texts(self, cast(Sequence[Prompt], [texts] if one else texts))
        found = list(embeddings(self, tokens, pooling, normalize))
        return found[0] if one else stack_embeddings(found, pooling, self.model.config.hidden)

    def _check(self, tokens: Sequence[int]) -> None:
        check_prompt(tokens, self.tokenizer.vocab_size, self.model.cells.capacity)

    def save(self, path: str | Path) -> None:
        """Save a session: the cached text, its KV cache cells and the sampler state."""
        save(self, path)

    def restore(self, path: str | Path) -> list[int]:
        """Restore a session and return its tokens. `stream` continues from them; with `resume` as
        if it had not been interrupted. On error (SessionError) nothing changes."""
        return restore(self, path)

    def reset(self) -> None:
        """Clear the KV cache."""
        self.drop_drafts()
        self.text.clear()

    @property
    def speculation(self) -> Speculation | None:
        """The speculative decoding in use, if any."""
        return self._speculation

    @speculation.setter
    def speculation(self, speculation: Speculation | None) -> None:
        self.drop_drafts()
        self._speculation = speculation

    @property
    def _verifies(self) -> bool:
        """Whether sampled drafts are verified against the target's distributions."""
        return self._speculation is not None and self._speculation.verifier is not None

    def drop_drafts(self) -> None:
        """Remove cells other than those of `text` from the cache: a suspended generation may have
        left draft tokens."""
        (self._speculation or self._plain).drop_drafts()

    @property
    def sampler_state(self) -> dict[str, Any] | None:
        """State of the last generation's sampler, for `resume`."""
        return self._sampler.state() if self._sampler else self._restored

    @sampler_state.setter
    def sampler_state(self, state: dict[str, Any] | None) -> None:
        self._sampler, self._restored = None, state

    def begin(self) -> int:
        """Start a generation and make older ones stale; returns its number."""
        self.timings.start()
        self._cancelled.clear()
        self._generation += 1
        self.drop_drafts()
        return self._generation

    def begin_reading(self) -> PrefixCache:
        """Like `begin`, but returns the prefix cache of sequence 0, for scoring and embedding."""
        self.begin()
        return self._single_text()

    def _single_text(self) -> PrefixCache:
        """Clear all sequences but 0; returns its prefix cache."""
        for sequence in range(1, self.model.options.sequences):
            self.model.cells.remove(sequence)
        return self.text

    def is_current(self, generation: int) -> bool:
        """Whether this generation is the latest."""
        return generation == self._generation

    def serving(self) -> Serving:
        """The engine as a scheduler of many prompts uses it."""
        if self._verifies:
            raise PromptError(
                "sampled drafts are verified for one prompt at a time: give one, with n = 1,"
                " or load the engine without sampling of drafts"
            )

        def completion(index: int, prompt: list[int], params: SamplingParams) -> Completion:
            return self._completion(index, prompt, self.samplers.in_tokens(params), False)

        return self._serving(completion)

    def _serving(self, completion: Callable[..., Completion]) -> Serving:
        kernel = partial(self.samplers.kernel, "log_sum_exp")
        return Serving(self.model, self._prompt, completion, kernel, self.timings)

    def _scheduler(self) -> Scheduler:
        """The scheduler for several sequences."""
        found = Scheduler(self.serving(), self.text.held)
        self.text.set_held([])  # now the scheduler's
        self.sampler_state = None  # `resume` needs a single text
        return found

    def _stepper(self, context_shift: bool, keep: int, resume: bool) -> SingleTextStepper:
        """The stepper for one text, in sequence 0."""

        def completion(index: int, prompt: list[int], params: SamplingParams) -> Completion:
            return self._completion(index, prompt, params, resume)

        def on_sampled(sampler: Sampler) -> None:
            self._sampler = sampler

        serving, decoding = self._serving(completion), self._speculation or self._plain
        return SingleTextStepper(
            serving, self._single_text(), decoding, on_sampled, context_shift, keep
        )

    def _pieces(
        self, request: Request, steps: Callable[[], Stepper]
    ) -> Generator[Piece, None, None]:
        """Yield the pieces of one request; raises its error."""
        with closing(self.serve(iter([request]), steps)) as outputs:
            for _, piece in outputs:
                if piece:
                    yield piece
        if request.error:
            raise request.error

    def serve_completed(self, requests: Iterator[Request]) -> Iterator[Request]:
        """Yield requests as they finish, with or without an error."""
        return (request for request, piece in self.serve(requests) if request.is_last_output(piece))

    def serve(
        self, requests: Iterator[Request], steps: Callable[[], Stepper] | None = None
    ) -> Generator[StepOutput, None, None]:
        """Run requests and yield each step's outputs; admits a few requests ahead of need.

        Raises `BusyError` if another generation has started on the engine.
        """
        generation = self.begin()
        stepping, live = (steps or self._scheduler)(), dict[str, Request]()
        ahead = QUEUED_PER_SEQUENCE * self.model.options.sequences
        try:
            while True:
                while stepping.waiting < ahead and (request := next(requests, None)):
                    live[request.id] = request
                    stepping.add(request)
                if not stepping.has_work:
                    return
                for request, piece in stepping.step():
                    if request.error and not isinstance(request.error, EngineError):
                        raise request.error  # raised by a caller's logits processor
                    if request.finished:
                        live.pop(request.id, None)
                    yield request, piece
                    if generation != self._generation:
                        raise BusyError(
                            "this generation cannot continue: another has begun on the same engine"
                        )
                if self._cancelled.is_set():
                    for request in chain(live.values(), requests):
                        yield from stepping.cancel(request)
                    return
        finally:
            if generation == self._generation and (held := stepping.close()) is not None:
                self.text.set_held(held)

    def _completion(
        self, index: int, prompt: list[int], params: SamplingParams, resume: bool
    ) -> Completion:
        tokenizer = self.tokenizer
        seed = None if params.seed is None else params.seed + index
        sampler = self.samplers.for_text(replace(params, seed=seed), prompt, self._verifies)
        if resume and (state := self.sampler_state) is not None:
            sampler.restore(state)
            known = len(self.text.held) + len(self.text.drawn)
            for token in prompt[known:]:  # tokens added since
                sampler.accept(token)
        if params.structured_outputs:  # applies to tokens sampled from here on
            sampler.constraint = self.samplers.grammars.constraint(params.structured_outputs)
        return Completion(index, params, sampler, tokenizer, tokenizer.eog_ids)
