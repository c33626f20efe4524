"""Small sparse GGUF files, for what looks at their tensors' names, shapes and sizes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.gguf_writer import NewTensor, text, u32, write_gguf
from engine.placement import Activations


@dataclass(frozen=True, slots=True)
class Sparse:
    """Sizes of a file in PowerInfer's layout, with random bytes for weights.

    rows     formats of gate, up and down_t, by block; the last one holds for all further blocks
    gated    whether there is a gate
    tied     whether there is no output matrix
    """

    blocks: int = 3
    hidden: int = 32
    kv: int = 32
    ffn: int = 600
    rank: int = 32
    vocab: int = 40
    context: int = 16
    rows: tuple[tuple[str, str, str], ...] = (("F16", "F16", "F16"),)
    gated: bool = True
    tied: bool = False
    seed: int = 0

    def tensors(self) -> list[NewTensor]:
        square = (self.hidden, self.hidden)
        tensors = [NewTensor("token_embd.weight", "F16", (self.vocab, self.hidden))]
        tensors += [NewTensor("output_norm.weight", "F32", (self.hidden,))]
        if not self.tied:
            tensors += [NewTensor("output.weight", "F16", (self.vocab, self.hidden))]
        for i in range(self.blocks):
            gate, up, down = self.rows[min(i, len(self.rows) - 1)]
            tensors += [
                NewTensor(f"blk.{i}.ffn_norm.weight", "F32", (self.hidden,)),
                NewTensor(f"blk.{i}.ffn_up.weight", up, (self.ffn, self.hidden)),
                NewTensor(f"blk.{i}.ffn_down_t.weight", down, (self.ffn, self.hidden)),
                NewTensor(f"blk.{i}.fc1.weight", "F16", (self.rank, self.hidden)),
                NewTensor(f"blk.{i}.fc2.weight", "F16", (self.ffn, self.rank)),
                NewTensor(f"blk.{i}.attn_norm.weight", "F32", (self.hidden,)),
                NewTensor(f"blk.{i}.attn_q.weight", "F16", square),
                NewTensor(f"blk.{i}.attn_k.weight", "F16", (self.kv, self.hidden)),
                NewTensor(f"blk.{i}.attn_v.weight", "F16", (self.kv, self.hidden)),
                NewTensor(f"blk.{i}.attn_output.weight", "F16", square),
            ]
            if self.gated:
                tensors += [NewTensor(f"blk.{i}.ffn_gate.weight", gate, (self.ffn, self.hidden))]
        return tensors

    def write(self, path: Path, without: str = "") -> Path:
        """The file, without the tensor of that name."""
        rng = np.random.default_rng(self.seed)
        tensors = [tensor for tensor in self.tensors() if tensor.name != without]
        keys = {
            "general.architecture": text("llama"),
            "llama.context_length": u32(self.context),
        }
        data = (rng.integers(0, 256, tensor.n_bytes, np.uint8) for tensor in tensors)
        write_gguf(path, keys, tensors, data, magic="PWRI")
        return path

    def activations(self, tokens: int = 10_000, model: str = "") -> Activations:
        """Few neurons that are active often, more of them in earlier blocks."""
        rng = np.random.default_rng(self.seed + 1)
        shares = (rng.beta(0.3, 3 + i, self.ffn) for i in range(self.blocks))
        return Activations(tuple(rng.binomial(tokens, p) for p in shares), tokens, model)
