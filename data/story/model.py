"""The story model in PyTorch: LLaMA's architecture, with GGUF's tensor names for parameters.

RoPE rotates the pairs (2i, 2i+1), as llama.cpp does for architecture "llama", so weights are
exported unchanged. Shapes: x is (rows, tokens, hidden).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu, scaled_dot_product_attention, silu

ACTIVATIONS = {"silu": silu, "relu": relu}  # of the gate


@dataclass(frozen=True)
class Shape:
    """Sizes of a LLaMA model."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    head_dim: int = 32
    context: int = 512
    vocabulary: int = 1024
    rope_base: float = 10000.0
    eps: float = 1e-5
    activation: str = "silu"


STORY = Shape(hidden=256, layers=5, heads=8, kv_heads=4, ffn=768)
RELU = replace(STORY, activation="relu")
DRAFT = Shape(hidden=128, layers=2, heads=4, kv_heads=2, ffn=256)


def linear(inputs: int, outputs: int, gain: float = 1.0) -> nn.Linear:
    """A linear layer that preserves the magnitude of its input, times `gain`."""
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=gain * inputs**-0.5)
    return layer


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (2i, 2i+1) of x (rows, heads, tokens, head_dim); cos, sin (tokens, pairs)."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


Past = dict[str, Tensor]  # the keys "k" and values "v" (rows, kv_heads, tokens, head_dim) so far


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.attn_norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.attn_q = linear(shape.hidden, width)
        self.attn_k = linear(shape.hidden, kv_width)
        self.attn_v = linear(shape.hidden, kv_width)
        self.attn_output = linear(width, shape.hidden, gain=0.2)
        self.ffn_norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.ffn_gate = linear(shape.hidden, shape.ffn)
        self.ffn_up = linear(shape.hidden, shape.ffn)
        self.ffn_down = linear(shape.ffn, shape.hidden, gain=0.2)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        past: Past | None = None,
        gates: list[Tensor] | None = None,
    ) -> Tensor:
        rows, tokens, _ = x.shape
        h = self.attn_norm(x)
        q, k, v = (
            projection(h).view(rows, tokens, -1, self.shape.head_dim).transpose(1, 2)
            for projection in (self.attn_q, self.attn_k, self.attn_v)
        )
        q, k = rope(q, cos, sin).to(v.dtype), rope(k, cos, sin).to(v.dtype)
        if past is not None:
            k = past["k"] = torch.cat((past["k"], k), dim=2) if "k" in past else k
            v = past["v"] = torch.cat((past["v"], v), dim=2) if "v" in past else v
        group = self.shape.heads // self.shape.kv_heads
        attended = scaled_dot_product_attention(
            q,
            k.repeat_interleave(group, dim=1),
            v.repeat_interleave(group, dim=1),
            is_causal=tokens > 1,
        )
        x = x + self.attn_output(attended.transpose(1, 2).reshape(rows, tokens, -1))
        h = self.ffn_norm(x)
        gate = ACTIVATIONS[self.shape.activation](self.ffn_gate(h))
        if gates is not None:
            gates.append(gate)
        return x + self.ffn_down(gate * self.ffn_up(h))


class Llama(nn.Module):
    """Token ids (rows, tokens) to logits (rows, tokens, vocabulary)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocabulary, shape.hidden)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.hidden, shape.eps)
        self.output = linear(shape.hidden, shape.vocabulary, gain=0.3)
        pairs = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        angles = torch.outer(torch.arange(shape.context), shape.rope_base**-pairs)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(
        self,
        ids: Tensor,
        start: int = 0,
        pasts: list[Past] | None = None,
        gates: list[Tensor] | None = None,
    ) -> Tensor:
        """With `pasts` (a dict a block, initially empty) decoding continues from `start`.

        `gates` gets the outputs of each block's activation, (rows, tokens, ffn).
        """
        here = slice(start, start + ids.shape[1])
        x = self.token_embd(ids)
        for block, past in zip(self.blk, pasts or [None] * len(self.blk), strict=True):
            x = block(x, self.cos[here], self.sin[here], past, gates)
        return self.output(self.output_norm(x))

    def losses(self, ids: Tensor, targets: Tensor, gates: list[Tensor] | None = None) -> Tensor:
        """-log probability (nats) of each target, f32 (rows * tokens); targets of -1 give 0."""
        logits = self(ids, gates=gates).float()
        return cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="none"
        )
