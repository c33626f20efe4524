"""Small sparse GGUF files: with random bytes, for code that reads tensors' names, shapes and sizes;
and models that run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist

import gguf
import numpy as np

from conformance.support.models.small_models import Small, Tensors
from engine.gguf.file import GGUFFile
from engine.gguf.writer import NewTensor, text, u32, write_gguf
from engine.placement import Activations
from reference.formats import FORMATS
from reference.models.transformer import Neurons, Shape, Weight
from reference.op import Array


@dataclass(frozen=True, slots=True)
class Sparse:
    """Sizes of a file in PowerInfer's layout, with random bytes for weights.

    rows     formats of gate, up and down_t, by block; the last one applies to all further blocks
    gated    whether there is a gate
    tied     whether the output is tied to the embedding
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
            "llama.block_count": u32(self.blocks),
        }
        data = (rng.integers(0, 256, tensor.n_bytes, np.uint8) for tensor in tensors)
        write_gguf(path, keys, tensors, data, magic="PWRI")
        return path

    def activations(self, tokens: int = 10_000, model: str = "") -> Activations:
        """Few neurons that are active often, more of them in earlier blocks."""
        rng = np.random.default_rng(self.seed + 1)
        shares = (rng.beta(0.3, 3 + i, self.ffn) for i in range(self.blocks))
        return Activations(tuple(rng.binomial(tokens, p) for p in shares), tokens, model)


OF_THE_FILE = Neurons(0.0)


@dataclass(frozen=True, slots=True)
class SmallSparse(Small):
    """A random LLaMA with a ReLU gate and predictors.

    ranks      ranks of the predictors, by block; empty for a model without predictors
    predictor  format of the predictors, if different
    shares     expected fractions of predicted neurons at a threshold of 0, by block;
               0 and 1 are exact
    threshold  stored in the file, if any
    runs       the neurons that the reference runs, by default those of the file's threshold
    """

    ranks: tuple[int, ...] = (32, 64)
    predictor: str = ""
    shares: tuple[float, ...] = (0.4, 0.4)
    threshold: float | None = 0.0
    magic: str = "PWRI"
    runs: Neurons | None = OF_THE_FILE

    @lru_cache(64)  # noqa: B019 - as in Small
    def _made(self) -> Tensors:
        matrices, norms = Small._made(self)
        weights = dict(matrices)
        rng = np.random.default_rng([self.seed, 1])

        def weight(values: Array, form: str) -> Weight:
            return Weight(FORMATS[form].quantise(values.astype(np.float32)), form)

        for i in range(self.blocks):
            down = weights.pop(f"blk.{i}.ffn_down.weight")
            values = rng.standard_normal((self.ffn, self.hidden), np.float32) * self.ffn**-0.5
            weights[f"blk.{i}.ffn_down_t.weight"] = weight(values, down.format)
        form = self.predictor or self.format
        for i, (rank, share) in enumerate(zip(self.ranks, self.shares, strict=False)):
            fc1 = rng.standard_normal((rank, self.hidden), np.float32) * self.hidden**-0.5
            weights[f"blk.{i}.fc1.weight"] = weight(fc1, form)
            weights[f"blk.{i}.fc2.weight"] = weight(self._fc2(rng, rank, share), form)
        return weights, norms

    def _fc2(self, rng: np.random.Generator, rank: int, share: float) -> Array:
        """Its input is not negative: a row of one sign gives logits of that sign, and of a normal
        row the mean determines how often they are positive (see data/random_model.py)."""
        rows = rng.standard_normal((self.ffn, rank), np.float32)
        if share in (0, 1):
            return np.float32(2 * share - 1) * np.abs(rows)
        less = NormalDist().inv_cdf(1 - share) / (rank / np.pi) ** 0.5
        return rows - np.float32(less)

    def shape(self) -> Shape:
        return replace(Small.shape(self), neurons=self.runs)

    def _sizes(self, writer: gguf.GGUFWriter) -> None:
        Small._sizes(self, writer)
        if self.threshold is not None:
            writer.add_float32("powerinfer.sparse_threshold", self.threshold)

    def write(self, path: Path, **metadata: float | str) -> Path:
        Small.write(self, path, **metadata)
        with path.open("r+b") as file:
            file.write(self.magic.encode())
        return path


SMALL_MODELS = {
    **{f: SmallSparse(format=f, seed=1) for f in ("F32", "F16", "Q8_0", "Q4_0")},
    "Q4_K": SmallSparse(format="Q4_K", predictor="Q4_0", hidden=256, heads=8, head_dim=32, ffn=256,
                        blocks=1, ranks=(64,), magic="GGUF"),
}  # fmt: skip
MIXED = Sparse(
    hidden=256,
    ffn=37,
    rows=(("F16", "F16", "F16"), ("Q8_0", "Q4_0", "Q4_K"), ("Q4_K", "Q4_K", "Q6_K")),
)


def made(write: Callable[[GGUFFile, Path], object], source: Path, out: Path) -> Path:
    with GGUFFile(source) as file:
        write(file, out)
    return out
