"""The sparse story model: made by Assay's own tools, and run by PowerInfer's formula in PyTorch."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import relu

from data.story import evaluate
from data.story.grammar import sample
from data.story.model import Block, Llama, Shape
from data.story.tokens import encode
from engine.gguf.file import GGUFFile
from engine.quantise import Recipe, quantise
from engine.sparsify.sparsify import sparsify
from engine.sparsify.train import Training
from engine.sparsity import THRESHOLD as KEY
from reference.formats import FORMATS

TEXT_SEED, TEXT_STORIES = 20_004, 500  # training text of the predictors
TRAINING = Training(recall=0.95, steps=1500)


def make(
    dense: Path, out: Path, tokenizer: Tokenizer, shape: Shape, threads: int
) -> dict[str, Any]:
    """Write the sparse model `out` of a dense one in F16, with all matrices in Q8_0."""
    rng = np.random.default_rng(TEXT_SEED)
    passages = [encode(tokenizer, sample(rng).text) for _ in range(TEXT_STORIES)]
    aside = dense.with_suffix(".powerinfer.gguf")
    made = sparsify(dense, passages, aside, TRAINING, threads=threads)
    with GGUFFile(aside) as file:
        quantise(file, out, Recipe("Q8_0", pure=True), threads=threads)
    texts = [story.text for story in evaluate.held_out()]
    model, predictors, threshold = read(out, shape)
    true_mask = evaluate.perplexity(model, tokenizer, texts)
    predict(model, predictors, threshold)
    return {
        "bytes": out.stat().st_size,
        "threshold": threshold,
        "learned_from": {"stories": TEXT_STORIES, "seed": TEXT_SEED},
        "perplexity_true_mask": true_mask,
        "perplexity_predicted": evaluate.perplexity(model, tokenizer, texts),
        "blocks": [
            {
                "active_share": block.active_share,
                "rank": block.rank,
                "recall": block.judged.recall,
                "precision": block.judged.precision,
                "predicted_share": block.judged.predicted_share,
            }
            for block in made.blocks
        ],
    }


def read(file: Path, shape: Shape) -> tuple[Llama, dict[str, Tensor], float]:
    """The model of a sparse file, dequantised to f32, its predictors by name, and the threshold."""
    with GGUFFile(file) as opened:
        weights = {
            name: torch.from_numpy(
                FORMATS[tensor.type_name].dequantise(opened.tensor(name)).astype(np.float32)
            )
            for name, tensor in opened.tensors.items()
        }
        threshold = float(opened.metadata[KEY])
    predictors = {name: weights.pop(name) for name in list(weights) if ".fc" in name}
    for name in [name for name in weights if name.endswith("down_t.weight")]:
        weights[name.replace("down_t", "down")] = weights.pop(name).T.contiguous()
    model = Llama(shape)
    model.load_state_dict(weights)
    return model, predictors, threshold


def predict(model: Llama, predictors: dict[str, Tensor], threshold: float) -> None:
    """Set the model's gates to 0 where fc2 . relu(fc1 . p) is below the threshold, from now on."""
    for i, block in enumerate(model.blk):
        fc1, fc2 = (predictors[f"blk.{i}.{name}.weight"] for name in ("fc1", "fc2"))
        _mask(block, fc1, fc2, threshold)


def _mask(block: Block, fc1: Tensor, fc2: Tensor, threshold: float) -> None:
    mask = torch.empty(0)

    def mask_of(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal mask
        mask = relu(inputs[0] @ fc1.T) @ fc2.T >= threshold

    def gate(linear: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return out * mask

    block.ffn_norm.register_forward_pre_hook(mask_of)
    block.ffn_gate.register_forward_hook(gate)
