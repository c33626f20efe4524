"""What transformers says where some heads stream, by the mask of DuoAttention's authors, and what
it says under NVIDIA's kvpress.

`python -m conformance.llama.peers.duo` writes data/golden/peers/duo.json anew, in the environment
of presses.py. kvpress reads a prompt whole and masks what streaming heads do not see of it behind
that: so it is asked of one block, whose keys no attention has a part in, and of one token, whose
window has the `recent` cells before itself.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.llama.peers.checkpoint import CHECKPOINTS, Checkpoint
from conformance.llama.peers.goldens import FOLDER
from engine import DuoAttention
from reference.op import Array

FILE = FOLDER / "duo.json"
NAMES = ("grouped_query", "multi_head")
SINKS, RECENT, PROMPT = 3, 7, 40


@dataclass(frozen=True, slots=True)
class Query:
    """A kind of answer, of a checkpoint with so many blocks: logits from the `first` token on of
    PROMPT and one more. A window has `recent` cells, a token's own among them."""

    kind: str
    blocks: int
    recent: int
    first: int

    def of(self, name: str) -> Checkpoint:
        return replace(CHECKPOINTS[name], num_hidden_layers=self.blocks)

    def tokens(self, name: str) -> list[int]:
        return self.of(name).tokens(PROMPT + 1)

    def policy(self, heads: str) -> DuoAttention:
        return DuoAttention(SINKS, self.recent, stride=1, heads=heads)


ASKED = Query("mask", 2, RECENT, 0), Query("kvpress", 1, RECENT + 1, PROMPT)


def numbers(checkpoint: Checkpoint) -> Array:
    """A number for each head of keys, of which half stream; some beyond 0 and 1."""
    dims = checkpoint.num_hidden_layers, checkpoint.num_key_value_heads
    return np.random.default_rng(checkpoint.seed).permutation(np.prod(dims)).reshape(dims) / 3 - 0.2


def logits_with_mask(model: Any, streaming: Array, tokens: list[int]) -> Any:
    """Logits where streaming heads have the authors' mask (streaming_attn.py)."""
    import torch
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ones = torch.ones(len(tokens), len(tokens), dtype=torch.bool)
    causal, sinks = ones.tril(), ones.clone()
    sinks[:, SINKS:] = False
    window = (ones.triu(1 - RECENT) | sinks) & causal

    def attention(module: Any, q: Any, k: Any, v: Any, mask: Any, **given: Any) -> Any:
        group = q.shape[1] // k.shape[1]
        own = torch.stack([window if s else causal for s in streaming[module.layer_idx]])
        k, v, own = (x.repeat_interleave(group, dim=-3) for x in (k, v, own))
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(q, k, v, attn_mask=own, scale=given["scaling"]).transpose(1, 2), None

    ALL_ATTENTION_FUNCTIONS["duo"] = attention
    model.set_attn_implementation("duo")
    return model(torch.tensor([tokens])).logits[0], streaming


def logits_with_kvpress(model: Any, given: Array, tokens: list[int]) -> Any:
    """Logits after a prompt, and the heads that kvpress streams by these numbers."""
    import kvpress
    import torch
    import transformers

    press = kvpress.DuoAttentionPress(head_compression_ratio=0.5)
    press.load_attention_pattern = lambda _: (SINKS, RECENT, np.clip(given, 0, 1))
    model.set_attn_implementation("sdpa")
    cache = transformers.DynamicCache()
    with press(model):
        model(torch.tensor([tokens[:PROMPT]]), past_key_values=cache, use_cache=True)
    at = torch.tensor([[PROMPT]])
    told = model(torch.tensor([tokens[PROMPT:]]), past_key_values=cache, position_ids=at)
    return told.logits[0], press.streaming_mask.numpy()


def answers() -> dict[str, Any]:
    """Streaming heads and logits, by checkpoint and kind of answer."""
    import torch

    from conformance.llama.peers.hugging_face import model_of
    from reference.cache.policies import streaming_heads

    found: dict[str, Any] = {}
    for name in NAMES:
        for asked in ASKED:
            checkpoint, tokens = asked.of(name), asked.tokens(name)
            model = model_of(checkpoint, checkpoint.weights()).eval()
            given = numbers(checkpoint)
            ask: Callable[..., Any] = logits_with_kvpress
            if asked.kind == "mask":
                ask, given = logits_with_mask, streaming_heads(given, 0.5)
            with torch.inference_mode():
                logits, streaming = ask(model, given, tokens)
            rows = [[float(f"{x:.7g}") for x in row] for row in logits.tolist()]
            told = {"streaming": streaming.tolist(), "logits": rows}
            found.setdefault(name, {})[asked.kind] = told
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps(answers(), separators=(",", ":")) + "\n")
