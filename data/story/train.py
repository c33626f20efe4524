"""Training of a story model for a fixed time."""

import time
from dataclasses import dataclass
from math import cos, pi
from pathlib import Path

import numpy as np
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from torch import Tensor

from data.story.model import Llama, Shape
from data.story.tokens import alone, packed, targets

# Single stories make it easy to attend to earlier facts; every fourth step, rows that
# fill the context train every position. Both are about 2600 tokens a step.
ALONE_ROWS, PACKED_ROWS = 20, 5
PACKED_EVERY = 4
CHECKPOINT_EVERY = 60.0  # seconds


@dataclass
class Trained:
    """A model, its training steps, time and loss."""

    model: Llama
    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    loss: float = float("nan")  # nats a token, smoothed


def schedule(step: int, progress: float) -> float:
    """Fraction of the peak rate: 100 steps of warm-up, a cosine over `progress` (0 to 1)."""
    return min(1.0, (step + 1) / 100) * (0.01 + 0.99 * (1 + cos(pi * progress)) / 2)


MUON_PEAK, ADAMW_PEAK = 0.02, 4e-3  # learning rates


def optimisers(model: Llama) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for embeddings, output and norms.

    With AdamW alone the model is slow to learn to copy (a name, a toy) from earlier in a story.
    """
    inner, outer = [], []
    for name, weight in model.named_parameters():
        (inner if name.startswith("blk.") and weight.ndim == 2 else outer).append(weight)
    return [
        torch.optim.Muon(inner, lr=MUON_PEAK, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(outer, lr=ADAMW_PEAK, betas=(0.9, 0.98), weight_decay=0.01, fused=True),
    ]


def step_loss(model: Llama, ids: np.ndarray, gates: list[Tensor] | None = None) -> Tensor:
    """Mean loss (nats a token) of a batch (rows, tokens + 1); matrix products are in bfloat16."""
    wanted = torch.from_numpy(targets(ids))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = model.losses(torch.from_numpy(ids[:, :-1]).clamp(min=0), wanted, gates)
    return losses.sum() / (wanted >= 0).sum()


def effective_share(gates: list[Tensor]) -> Tensor:
    """(sum a)^2 / (n sum a^2) of each token's activations a >= 0, the mean over tokens and blocks:
    s if a fraction s of them is equal and the rest 0, at any scale (1908.09979: DeepHoyer)."""
    squares = [gate.float().square().mean(-1) for gate in gates]
    means = [gate.float().mean(-1) for gate in gates]
    shares = [m.square() / (s + 1e-12) for m, s in zip(means, squares, strict=True)]
    return torch.stack([share.mean() for share in shares]).mean()


def train(
    name: str, shape: Shape, tokenizer: Tokenizer, *, seconds: float, floor: float, seed: int,
    checkpoint: Path, start: Llama | None = None, rate: float = 1.0, sparsity: float = 0.0,
) -> Trained:  # fmt: skip
    """Train for `seconds`, or resume from `checkpoint`; `floor` (nats a token) is only displayed.

    Initial weights are those of `start`, if given; `rate` is a fraction of the peak learning rates;
    `sparsity` times the `effective_share` of the activations is added to the loss (nats).
    """
    torch.manual_seed(seed)
    done = Trained(Llama(shape))
    model = done.model
    if start is not None:
        model.load_state_dict(start.state_dict())
    both = optimisers(model)
    peaks = [rate * each.param_groups[0]["lr"] for each in both]
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved.pop("model"))
        for each, state in zip(both, saved.pop("optimisers"), strict=True):
            each.load_state_dict(state)
        done = Trained(model, **saved)

    def save() -> None:
        counts = {"seconds": done.seconds, "steps": done.steps, "tokens": done.tokens}
        state = {"model": model.state_dict(), "optimisers": [o.state_dict() for o in both]}
        part = checkpoint.with_suffix(".part")
        torch.save({**state, **counts, "loss": done.loss}, part)
        part.replace(checkpoint)

    rng = np.random.default_rng([seed, done.tokens])
    single, full = (
        alone(tokenizer, rng, ALONE_ROWS),
        packed(tokenizer, rng, PACKED_ROWS, shape.context),
    )
    columns = (
        TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(),
        TextColumn("loss {task.fields[loss]:.4f}, floor {task.fields[floor]:.4f} nats/token"),
    )  # fmt: skip
    with Progress(*columns) as bar:
        task = bar.add_task(name, total=seconds, loss=done.loss, floor=floor)
        last, last_saved = time.monotonic(), done.seconds
        while done.seconds < seconds:
            ids = next(full if done.steps % PACKED_EVERY == 0 else single)
            gates: list[Tensor] | None = [] if sparsity else None
            loss = step_loss(model, ids, gates)
            push = sparsity * effective_share(gates) if gates else 0.0
            model.zero_grad()
            (loss + push).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for each, peak in zip(both, peaks, strict=True):
                each.param_groups[0]["lr"] = peak * schedule(done.steps, done.seconds / seconds)
                each.step()

            now = time.monotonic()
            done.seconds, last = done.seconds + now - last, now
            done.steps += 1
            done.tokens += int((targets(ids) >= 0).sum())
            value = loss.item()
            done.loss = value if done.steps == 1 else 0.98 * done.loss + 0.02 * value
            bar.update(task, completed=done.seconds, loss=done.loss)
            if done.seconds - last_saved > CHECKPOINT_EVERY or done.seconds >= seconds:
                save()
                last_saved = done.seconds
                if not bar.console.is_terminal:
                    bar.console.print(f"{name}: {done.seconds:.0f} s, {done.steps} steps, "
                                      f"loss {done.loss:.4f}, floor {floor:.4f}")  # fmt: skip
    return done
