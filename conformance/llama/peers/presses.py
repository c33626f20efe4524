"""What NVIDIA's kvpress keeps of a prompt, and what transformers then says of the tokens behind it.

`python -m conformance.llama.peers.presses` writes data/golden/peers/presses.json anew; it wants
kvpress (0.5 is for transformers up to 5.2, so an environment of its own). Scores within RELATIVE of
the edge of what is kept are no choice of a method's but of its rounding: such a cell is told as
tied, of which any may be kept.
"""

import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from conformance.llama.peers.checkpoint import CHECKPOINTS, Checkpoint
from conformance.llama.peers.goldens import FOLDER

FILE = FOLDER / "presses.json"
NAMES = ("grouped_query", "multi_head", "multi_query")
PROMPT, FOLLOWING, KEPT = 60, 4, 24  # tokens
RELATIVE = 1e-5


@dataclass(frozen=True, slots=True)
class Press:
    """A press by its class and numbers, and the engine's policy that is to keep the same, of a
    checkpoint with so many blocks."""

    kind: str
    numbers: dict[str, float]
    policy: str
    blocks: int = 2

    def of(self, name: str) -> Checkpoint:
        """The checkpoint that is asked about."""
        return replace(CHECKPOINTS[name], num_hidden_layers=self.blocks)


PRESSES = (
    Press("StreamingLLMPress", {"n_sink": 4}, "streaming_llm:capacity=24,sinks=4"),
    Press("KnormPress", {}, "knorm:capacity=24"),
    Press("KeyDiffPress", {}, "keydiff:capacity=24"),
    Press("SnapKVPress", {"window_size": 8, "kernel_size": 5}, "snapkv:capacity=24,window=8"),
    Press(
        "SnapKVPress", {"window_size": 8, "kernel_size": 1}, "snapkv:capacity=24,window=8,kernel=1"
    ),
    # its last block keeps 24 / beta cells, the window among them, and ours 8 + 16 / 20
    Press(
        "PyramidKVPress",
        {"window_size": 8, "kernel_size": 5, "beta": 24 / 8.8},
        "pyramidkv:capacity=24,window=8",
        blocks=4,
    ),
)


def answers() -> dict[str, Any]:
    """By checkpoint and press: cells kept for sure and tied ones of each head, and later logits."""
    import kvpress
    import torch
    import transformers

    from conformance.llama.peers.hugging_face import model_of

    found: dict[str, Any] = {
        "versions": {p.__name__: p.__version__ for p in (torch, transformers)}
        | {"kvpress": _version()}
    }
    for name in NAMES:
        tokens = CHECKPOINTS[name].tokens(PROMPT + FOLLOWING)
        for press in PRESSES:
            checkpoint = press.of(name)
            model = model_of(checkpoint, checkpoint.weights()).eval()
            made = getattr(kvpress, press.kind)(
                compression_ratio=1 - KEPT / PROMPT, **press.numbers
            )
            layers: list[dict[str, Any]] = []
            made.score = partial(
                _recording, made.score, getattr(made, "get_layer_budget", None), layers
            )
            cache, rows = transformers.DynamicCache(), []
            with torch.inference_mode():
                with made(model):
                    prompt = torch.tensor([tokens[:PROMPT]])
                    model(prompt, past_key_values=cache, use_cache=True)
                lengths = [layer.keys.shape[2] for layer in cache.layers]
                assert sum(lengths) == KEPT * press.blocks
                if len(set(lengths)) > 1:  # eager attention has one mask for all layers
                    model.set_attn_implementation("sdpa")
                for at in range(PROMPT, PROMPT + FOLLOWING):
                    answer = model(
                        torch.tensor([[tokens[at]]]),
                        past_key_values=cache,
                        position_ids=torch.tensor([[at]]),
                        use_cache=True,
                    )
                    rows.append([float(f"{x:.7g}") for x in answer.logits[0, 0].tolist()])
            found.setdefault(name, {})[press.policy] = {"layers": layers, "logits": rows}
    return found


def _recording(score: Any, budget: Any, layers: list[dict[str, Any]], *given: Any) -> Any:
    """A press that keeps KEPT in every layer, or a `budget`, and adds its choices to `layers`."""
    scores = score(*given)
    layers.append(_kept_and_tied(scores[0], budget(given[0], PROMPT) if budget else KEPT))
    return scores


def _kept_and_tied(scores: Any, count: int) -> dict[str, list[list[int]]]:
    """From scores [kv_heads, held]: the cells that each head keeps for sure, and the tied ones."""
    found: dict[str, list[list[int]]] = {"kept": [], "tied": []}
    for own in scores.double():
        ordered = own.sort(descending=True).values
        edge, below = ordered[count - 1], ordered[count]
        near = RELATIVE * edge.abs()
        tied = (own - edge).abs() <= near if edge - below <= near else own > ordered[0]
        kept = (own >= edge) & ~tied
        for what, which in (("kept", kept), ("tied", tied)):
            found[what].append(which.nonzero()[:, 0].tolist())
    return found


def _version() -> str:
    from importlib.metadata import version

    return version("kvpress")


if __name__ == "__main__":
    FILE.write_text(json.dumps(answers(), separators=(",", ":")) + "\n")
