"""Hugging Face transformers: `LlamaForCausalLM` on the CPU, in float32, attention written out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from conformance.llama.peers.checkpoint import Checkpoint
from reference.op import Array

PEER = "transformers"
VERSIONS = {"transformers": transformers.__version__, "torch": torch.__version__}


def logits(checkpoint: Checkpoint, weights: Mapping[str, Array], tokens: Sequence[int]) -> Array:
    """The logits after every token, float32 [tokens, vocab]."""
    return _answer(model_of(checkpoint, weights), tokens)


def logits_of_folder(folder: Path, tokens: Sequence[int]) -> Array:
    """The logits of a model as transformers itself opens its folder."""
    return _answer(_opened(folder), tokens)


def hidden_of_folder(folder: Path, tokens: Sequence[int]) -> Array:
    """The hidden states from which that model's logits are computed, float32 [tokens, hidden]."""
    with torch.inference_mode():
        answer = _opened(folder).base_model.eval()(torch.tensor([list(tokens)]), use_cache=False)
    return np.asarray(answer.last_hidden_state[0].numpy(), np.float32)


def score(logits: Array, tokens: Sequence[int], first: int) -> tuple[float, bool]:
    """PyTorch's log-probability of each of `tokens[first:]`, and whether each is the likeliest."""
    rows = torch.log_softmax(torch.from_numpy(logits[first - 1 : -1].astype(np.float64)), dim=-1)
    wanted = torch.tensor(list(tokens[first:]))
    likely = bool((rows.argmax(dim=-1) == wanted).all())
    return float(rows.gather(1, wanted[:, None]).sum()), likely


def _opened(folder: Path) -> transformers.PreTrainedModel:
    return _kind_of(transformers.AutoConfig.from_pretrained(folder)).from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",  # what joins them wants rows of multiples of 16 bytes
        local_files_only=True,
    )


def _kind_of(config: transformers.PreTrainedConfig) -> Any:
    """What opens a model: one that sees has a class of another kind."""
    sees = hasattr(config, "vision_config")
    return transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM


def save_random(config: Mapping[str, Any], folder: Path) -> None:
    """A model of any family, matrices of unit gain and norms around one, of which Gemma's and Qwen
    3 Next's hold what is more, as transformers saves it; `config` is that of its config.json."""
    torch.manual_seed(1)
    found = transformers.AutoConfig.for_model(**config)
    model = _kind_of(found).from_config(found)
    lacking, kind = ("gemma", "gemma2", "gemma3_text", "nemotron"), config["model_type"]
    more = kind in lacking or kind.startswith(("qwen3_next", "qwen3_5"))
    for name, weight in model.named_parameters():
        whole = not more or name.endswith("linear_attn.norm.weight")
        scaling = name.endswith(("router.scale", "per_expert_scale"))  # Gemma 4's
        around = float(weight.ndim == 1 and ((name.endswith("weight") and whole) or scaling))
        deviation = 0.1 if weight.ndim == 1 else weight.shape[-1] ** -0.5
        weight.data = around + deviation * torch.randn_like(weight)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):  # DeepSeek V3's, of the choice of experts
            buffer.copy_(0.1 * torch.randn_like(buffer))
        elif name.endswith("layer_scalar"):  # Gemma 4's, of what a layer gives
            buffer.copy_(1 + 0.1 * torch.randn_like(buffer))
    model.save_pretrained(folder)


def save_pickle(weights: Mapping[str, Array], path: Path) -> None:
    """Weights as PyTorch's own file, in bfloat16."""
    torch.save({n: torch.from_numpy(w.copy()).to(torch.bfloat16) for n, w in weights.items()}, path)


def save_folder(
    checkpoint: Checkpoint, folder: Path, tokenizer: Path, begin: str, end: str
) -> transformers.PreTrainedTokenizerFast:
    """A model in bfloat16 and a tokenizer, both saved by transformers, and that tokenizer opened
    again. Token 3 ends a text as well."""
    model = model_of(checkpoint, checkpoint.weights()).to(torch.bfloat16)
    model.generation_config.eos_token_id = [2, 3]
    model.save_pretrained(folder, max_shard_size="50KB")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer), bos_token=begin, eos_token=end
    )
    fast.save_pretrained(folder)
    return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def model_of(checkpoint: Checkpoint, weights: Mapping[str, Array]) -> transformers.LlamaForCausalLM:
    fields = {name: value for name, value in asdict(checkpoint).items() if name != "seed"}
    config = transformers.LlamaConfig(**fields, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config)
    state = {name: torch.from_numpy(weight.copy()) for name, weight in weights.items()}
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    model.load_state_dict(state)
    return model


def _answer(model: transformers.PreTrainedModel, tokens: Sequence[int]) -> Array:
    with torch.inference_mode():
        answer = model.eval()(torch.tensor([list(tokens)]), use_cache=False).logits[0]
    return np.asarray(answer.numpy(), np.float32)
