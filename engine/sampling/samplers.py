"""Create samplers for a model's logits, with certified kernels."""

from collections.abc import Sequence
from functools import partial

from engine.model import Model
from engine.sampling.chain import Bind, needed_ops, sampling_spec
from engine.sampling.params import SamplingParams
from engine.sampling.sampler import Sampler
from engine.sampling.structured import Grammars
from engine.tokenizer import Tokenizer
from kernels.call import bind
from kernels.dispatch import KernelSpec
from kernels.kernel import Kernel


class Samplers:
    """Creates samplers for texts and drafts; caches the selected kernels."""

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._kernels: dict[KernelSpec, Kernel] = {}
        self.grammars = Grammars(tokenizer, model.config.vocab)

    def in_tokens(self, params: SamplingParams) -> SamplingParams:
        """Parameters with texts encoded as token ids, as they are inside a text."""
        encode = partial(self._tokenizer.encode, add_special=False, at_start=False)
        return params.in_tokens(encode)

    def for_text(
        self, params: SamplingParams, prompt: Sequence[int], distributions: bool
    ) -> Sampler:
        """A sampler for a completion of `prompt`; with `distributions` also for verifying sampled
        drafts."""
        return Sampler(
            params,
            self._model.config.vocab,
            self._tokenizer.eog_ids,
            prompt=prompt,
            kernels=self.bind_kernels(needed_ops(params, distributions)),
        )

    def for_drafts(self, params: SamplingParams) -> Sampler:
        """A sampler for drafts, with distributions. Its random numbers are independent of those of
        the texts' samplers, even with the same seed."""
        return Sampler(
            self.in_tokens(params),
            self._model.config.vocab,
            self._tokenizer.eog_ids,
            kernels=self.bind_kernels(needed_ops(params, distributions=True)),
            stream=(1,),
        )

    def kernel(self, op: str) -> Kernel:
        """The certified kernel of an op."""
        self.bind_kernels([op])
        return self._kernels[self._spec(op)]

    def bind_kernels(self, ops: Sequence[str]) -> dict[str, Bind]:
        """Certified kernels of these ops, by name."""
        needs = {op: self._spec(op) for op in ops}
        if new := [need for need in needs.values() if need not in self._kernels]:
            progress = self._model.options.progress.certified
            chosen = self._model.dispatcher.choose(new, progress)
            for kernel in chosen.values():
                kernel.share.compile()  # now, not during decode
            self._kernels |= chosen
        return {op: partial(bind, self._kernels[need]) for op, need in needs.items()}

    def _spec(self, op: str) -> KernelSpec:
        return sampling_spec(op, self._model.config.vocab)
