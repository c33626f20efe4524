"""Build a drafter from its settings."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from engine.config import ModelError
from engine.model import Model
from engine.options import MOST_SEQUENCES, Options
from engine.sampling.sampler import Sampler
from engine.sampling.samplers import Samplers
from engine.speculation import vocabularies
from engine.speculation.drafter import Drafter
from engine.speculation.lookahead import LookaheadDrafter
from engine.speculation.model_drafter import (
    DraftingModel,
    DraftModel,
    ModelDrafter,
    SparseTarget,
    draw,
    grow,
)
from engine.speculation.mtp_drafter import MTPDrafter
from engine.speculation.prompt_lookup import PromptLookupDrafter
from engine.speculation.settings import (
    MTP,
    Linear,
    Lookahead,
    LookaheadTrie,
    PromptLookup,
    Settings,
    Tree,
    branches,
)
from engine.speculation.speculate import Speculation
from engine.speculation.trie import Trie, TrieDrafter
from engine.speculation.verification import OPS, Verifier
from engine.tokenizer import Tokenizer


class Loaded(Protocol):
    """The parts of an engine that drafting uses."""

    @property
    def model(self) -> Model: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def samplers(self) -> Samplers: ...


def with_draft_capacity(options: Options, settings: Settings) -> Options:
    """The target's options, with sequences, outputs and states for drafts."""
    return replace(
        options,
        sequences=max(options.sequences, min(2 + branches(settings), MOST_SEQUENCES)),
        outputs=max(options.outputs, 1 + settings.draft_max),
        states=max(options.states, 1 + settings.draft_max),
        mtp=options.mtp or isinstance(settings, MTP),
    )


def make_speculation(settings: Settings, target: Loaded, draft: Loaded | None) -> Speculation:
    """Build speculative decoding; raises `ModelError` if settings and models do not match."""
    if target.model.limits["tokens"] < 2:
        raise ModelError("drafts need steps of at least 2 tokens: batch or context is 1")
    sampler = verifier = None
    if isinstance(settings, Linear) and settings.sampling:
        sampler = (draft or target).samplers.for_drafts(settings.sampling)
        kernels = target.samplers.bind_kernels(OPS)
        verifier = Verifier(target.model.config.vocab, kernels, sampler)
    return Speculation(
        target.model,
        make_drafter(settings, target, draft, sampler),
        settings.draft_max,
        branches(settings),
        settings.adaptive,
        verifier,
    )


def make_drafter(
    settings: Settings, target: Loaded, draft: Loaded | None, sampler: Sampler | None = None
) -> Drafter:
    """Build the drafter; with a `sampler` its tokens are sampled."""
    if draft and not isinstance(settings, Linear | Tree):
        raise ModelError(f"{type(settings).__name__} drafts without a model, but one was given")
    match settings:
        case PromptLookup():
            return PromptLookupDrafter(settings.prompt_lookup_min, settings.prompt_lookup_max)
        case LookaheadTrie():
            return TrieDrafter(Trie(settings.branch_length), decoding_length=settings.draft_max)
        case Lookahead():
            return LookaheadDrafter(settings.W, settings.N, settings.G, settings.seed)
        case MTP():
            return MTPDrafter(target.model, settings.draft_p_min)
    drafting_model = _drafting_model(settings, target, draft)
    propose = partial(grow, p_min=settings.draft_p_min)
    if isinstance(settings, Tree):
        propose = partial(propose, p_split=settings.p_split, branches=settings.n_parallel)
    elif sampler:
        propose = partial(draw, sampler=sampler, p_min=settings.draft_p_min)
    found = ModelDrafter(drafting_model, propose, settings.draft_min)
    if draft and settings.translate:
        return vocabularies.TranslatedDrafter(found, target.tokenizer, draft.tokenizer)
    return found


def _drafting_model(settings: Linear | Tree, target: Loaded, draft: Loaded | None) -> DraftingModel:
    """The model that drafts."""
    if draft is None:
        if settings.threshold is None:
            raise ModelError("drafting needs a draft model, or a stricter neuron threshold")
        if not target.model.config.sparsity:
            path = target.model.file.path
            raise ModelError(f"{path}: no block skips neurons, so a draft cannot skip more")
        return SparseTarget(target.model, settings.threshold)
    if settings.threshold is not None:
        raise ModelError("a draft model and a stricter threshold exclude each other")
    if not settings.translate:
        vocabularies.check(target.tokenizer, draft.tokenizer, Path(draft.model.file.path))
    return DraftModel(draft.model)
