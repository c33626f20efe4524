"""Hugging Face transformers with PyTorch on the CPU, from the same GGUF file."""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
import transformers

from bench.contenders.contender import Array, Setup
from engine.gguf.file import GGUFFile


class Transformers:
    """The file's weights dequantised: float32, or bfloat16 where memory is too small."""

    exact = False

    def __init__(self, model: Path, setup: Setup) -> None:
        torch.set_num_threads(setup.threads)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        with GGUFFile(model) as file:
            formats = sorted({tensor.type_name for tensor in file.tensors.values()})
            weights = sum(int(np.prod(tensor.dims)) for tensor in file.tensors.values())
        # the loader briefly has every tensor twice
        fits = 2 * 4 * weights < psutil.virtual_memory().available
        self._dtype = torch.float32 if fits else torch.bfloat16
        self._from = ", ".join(formats)
        self._batch = setup.batch
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            str(model.parent), gguf_file=model.name, dtype=self._dtype
        ).eval()
        self.vocab = int(self._model.config.vocab_size)
        self._cache: Any = transformers.DynamicCache()

    def hold(self, sequences: int, length: int) -> int:
        held = int(self._cache.get_seq_length())
        if not length or not held or sequences > 1:
            self._cache = transformers.DynamicCache()
            return 0
        if held > length:
            self._cache.crop(length - held)  # negative: how many to drop
        return min(held, length)

    def evaluate(self, tokens: Array, start: int) -> Array:
        n_sequences, n = tokens.shape
        if start != self._cache.get_seq_length():
            raise ValueError(f"the cache holds {self._cache.get_seq_length()} tokens, not {start}")
        columns = max(1, self._batch // n_sequences)
        ids = torch.from_numpy(tokens.astype(np.int64))
        with torch.inference_mode():
            for first in range(0, n, columns):
                logits = self._model(
                    ids[:, first : first + columns],
                    past_key_values=self._cache,
                    use_cache=True,
                    logits_to_keep=1,
                ).logits
            return np.asarray(logits[:, -1].float().numpy(), np.float32)

    def first_token(self, tokens: Sequence[int]) -> int:
        return int(np.argmax(self.evaluate(np.array([tokens], np.int32), 0)[-1]))

    @property
    def about(self) -> dict[str, str]:
        dtype = str(self._dtype).removeprefix("torch.")
        return {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "weights": f"{dtype}, dequantised from {self._from}; cache in {dtype}",
            "attention": str(self._model.config._attn_implementation),
        }

    def close(self) -> None:
        self._model = self._cache = None
        gc.collect()  # before another is opened
