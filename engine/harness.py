"""Assay as a model of lm-evaluation-harness (an optional package, imported here only).

`python -m engine.harness` is the harness's program `lm_eval` with the model type `assay` added:

    python -m engine.harness run --model assay --model_args model=FILE.gguf,threads=2 --tasks ...
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from engine.chat import chat_template_source
from engine.checks import PromptError
from engine.engine import Engine
from engine.errors import PackageError
from engine.generation.scoring import Pair, context_start_id, scores, text_ids
from engine.options import DEVICES
from engine.sampling.params import SamplingParams

try:
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
    from tqdm import tqdm
except ImportError as error:
    MISSING = "lm-evaluation-harness is not installed: pip install 'assay[lm-eval]'"
    if __name__ == "__main__":
        raise SystemExit(f"assay: {MISSING}") from None
    raise PackageError(MISSING) from error

DEFAULT_MAX_TOKENS = 256  # max_tokens, where a task does not set it
SAMPLING_FIELDS = {field.name for field in fields(SamplingParams)}


@register_model("assay")
class AssayLM(TemplateLM):  # type: ignore[misc]
    """An engine as a harness model.

    `model` is what `Engine.load` takes, or an engine; `options` are fields of Options. Of the
    harness's own options, a `batch_size` above 1 sets `sequences`, and `device` "cuda" selects the
    GPU; the harness's default "cuda:0" does not.
    """

    def __init__(
        self,
        model: str | Path | Engine,
        *,
        batch_size: int | str | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        options.pop("max_batch_size", None)  # used by the harness's automatic batch sizes
        if str(batch_size or 1).isdecimal() and int(batch_size or 1) > 1:
            options.setdefault("sequences", int(batch_size or 1))
        if device in DEVICES:
            options["device"] = device
        self.engine = model if isinstance(model, Engine) else Engine.load(model, **options)

    @property
    def eot_token_id(self) -> int:
        """The end-of-text token."""
        return _required(self.engine.tokenizer.eos_id, "EOS")

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without context."""
        return _required(context_start_id(self.engine.tokenizer), "BOS or EOS")

    @property
    def max_length(self) -> int:
        """Most context tokens for a predicted token."""
        return self.engine.model.cells.capacity

    def tok_encode(self, string: str, add_special_tokens: bool | None = None) -> list[int]:
        """Encode a text; BOS is added if the model uses it and the text does not have it."""
        tokenizer = self.engine.tokenizer
        if add_special_tokens is False:
            return tokenizer.encode(string, add_special=False, parse_special=True)
        return text_ids(tokenizer, string)

    def _loglikelihood_tokens(
        self,
        requests: Sequence[tuple[tuple[str, str] | None, list[int], list[int]]],
        disable_tqdm: bool = False,
    ) -> list[tuple[float, bool]]:
        """Log-likelihoods of continuations; prompts that are too long are truncated on the left."""
        pairs = [_truncated(context, wanted, self.max_length) for _, context, wanted in requests]
        answers: dict[int, tuple[float, bool]] = {}
        for index, score in _with_progress(scores(self.engine, pairs), len(pairs), disable_tqdm):
            answers[index] = score.cumulative_logprob, score.is_greedy
            if (key := requests[index][0]) is not None:
                self.cache_hook.add_partial("loglikelihood", key, answers[index])
        return [answers[index] for index in range(len(pairs))]

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts, in windows of the context's length."""
        windows = [
            [
                (None, *make_disjoint_window(window))
                for window in get_rolling_token_windows(
                    token_list=self.tok_encode(request.args[0]),
                    prefix_token=self.prefix_token_id,
                    max_seq_len=self.max_length,
                    context_len=1,
                )
            ]
            for request in requests
        ]
        every = [window for own in windows for window in own]
        scored = iter(self._loglikelihood_tokens(every, disable_tqdm))
        sums = [sum(next(scored)[0] for _ in own) for own in windows]
        for request, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return sums

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Generate until the first stop text (`until`), for many prompts at once."""
        asked = [_sampling_params(request.args[1]) for request in requests]
        prompts = [
            self.tok_encode(request.args[0])[-max(1, self.max_length - (params.max_tokens or 0)) :]
            for request, params in zip(requests, asked, strict=True)
        ]
        found = self.engine.as_completed(prompts, asked)
        answers: dict[int, str] = {}
        for result in _with_progress(found, len(prompts), disable_tqdm):
            index = int(result.request_id)
            if result.error:
                raise PromptError(f"prompt {index}: {result.error}")
            answers[index] = result.text
            self.cache_hook.add_partial("generate_until", requests[index].args, result.text)
        return [answers[index] for index in range(len(prompts))]

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Render a conversation with the model's chat template."""
        return self.engine.chat_template().render(chat_history, add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The source of the model's chat template, if requested."""
        if isinstance(chat_template, str):
            raise PromptError(f"chat template {chat_template!r}: GGUF files have no named ones")
        return chat_template_source(self.engine.model.metadata) if chat_template else None

    @property
    def tokenizer_name(self) -> str:
        """Distinguishes the harness's cached requests by model."""
        return Path(self.engine.model.file.path).name


def _required(token: int | None, what: str) -> int:
    if token is None:
        raise PromptError(f"the model's vocabulary has no {what}")
    return token


def _truncated(context: list[int], wanted: list[int], most: int) -> Pair:
    """Truncate the context on the left, to evaluate `most` tokens (all but the last)."""
    if not wanted:
        raise PromptError("a continuation is empty")
    if len(wanted) > most:
        raise PromptError(
            f"a continuation has {len(wanted)} tokens, the context holds {most}: load with a larger"
        )
    return context[-(most + 1 - len(wanted)) :], wanted


def _sampling_params(given: Mapping[str, Any]) -> SamplingParams:
    """SamplingParams from a task's generation_kwargs, in transformers' names or our own."""
    asked = dict(normalize_gen_kwargs(dict(given), default_max_gen_toks=DEFAULT_MAX_TOKENS))
    until = handle_stop_sequences(asked.pop("until", None), eos=None)
    most = asked.pop("max_gen_toks")
    if not asked.pop("do_sample"):
        asked["temperature"] = 0.0
    if unknown := sorted(asked.keys() - SAMPLING_FIELDS):
        raise PromptError(f"generation_kwargs has {unknown[0]!r}, an unknown parameter")
    return SamplingParams(**asked, max_tokens=most, stop=[text for text in until if text])


def _with_progress(found: Iterable[Any], total: int, hidden: bool) -> Iterable[Any]:
    return tqdm(found, total=total, disable=hidden)  # type: ignore[no-any-return]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
