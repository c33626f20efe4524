"""Hugging Face transformers: `LlamaForCausalLM` on the CPU, in float32, attention written out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import transformers

from conformance.llama.peers.checkpoint import Checkpoint
from reference.op import Array

PEER = "transformers"
VERSIONS = {"transformers": transformers.__version__, "torch": torch.__version__}


def logits(checkpoint: Checkpoint, weights: Mapping[str, Array], tokens: Sequence[int]) -> Array:
    """The logits after every token, float32 [tokens, vocab]."""
    fields = {name: value for name, value in asdict(checkpoint).items() if name != "seed"}
    config = transformers.LlamaConfig(**fields, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config)
    state = {name: torch.from_numpy(weight.copy()) for name, weight in weights.items()}
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    model.load_state_dict(state)
    return _answer(model, tokens)


def logits_of_folder(folder: Path, tokens: Sequence[int]) -> Array:
    """The same of a model as transformers itself opens its folder."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    return _answer(model, tokens)


def save_pickle(weights: Mapping[str, Array], path: Path) -> None:
    """Weights as PyTorch's own file, in bfloat16."""
    torch.save({n: torch.from_numpy(w.copy()).to(torch.bfloat16) for n, w in weights.items()}, path)


def _answer(model: transformers.PreTrainedModel, tokens: Sequence[int]) -> Array:
    with torch.inference_mode():
        answer = model.eval()(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return np.asarray(answer.numpy(), np.float32)
