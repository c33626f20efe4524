"""Options that several commands share, as typer annotations."""

from pathlib import Path
from typing import Annotated

import typer

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, or e.g. story.")]
Threads = Annotated[int, typer.Option("-t", "--threads", help="0: one per core that it may use.")]
Context = Annotated[
    int, typer.Option("-c", "--context", help="Tokens of context; 0: the model's own.")
]
TextFile = Annotated[Path, typer.Argument(metavar="FILE", help="A text in UTF-8; - reads stdin.")]
Chunk = Annotated[
    int,
    typer.Option(
        "-c", "--context", help="Tokens of a chunk; 0: a base's, or 512 if the model has them."
    ),
]
Chunks = Annotated[int | None, typer.Option(help="Most chunks; all by default.")]
Batch = Annotated[int, typer.Option("-b", "--batch", help="Most tokens of one step.")]
KvFormat = Annotated[str, typer.Option("--kv", help="Format of the cache: F32, F16, Q8_0 or Q4_0.")]
Numerics = Annotated[str, typer.Option(help="exact, or fast: weights may be rounded to bfloat16.")]
Tune = Annotated[
    bool,
    typer.Option(
        "--tune/--no-tune",
        help="Measure what suits this machine best when a model is first loaded; same bits.",
    ),
]
Pinned = Annotated[bool, typer.Option("--pinned", help="Keep each thread to a core of its own.")]
Device = Annotated[
    str, typer.Option(help="cpu, or cuda: a GPU runs the last of the model's blocks, or all.")
]
GpuLayers = Annotated[
    int,
    typer.Option(
        "-ngl",
        "--gpu-layers",
        metavar="N",
        help="Blocks on the GPU, the last ones; -1: all.",
    ),
]
Variant = Annotated[str | None, typer.Option(help="This variant alone, where an op has it.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop where a kernel fails its trial.")]
KeepPacked = Annotated[
    bool, typer.Option("--keep-packed", help="Keep packed weights on disk for the next load.")
]
Sparse = Annotated[
    str, typer.Option(help="Of a sparse model, skip neurons: auto (where it pays), on or off.")
]
SparseThreshold = Annotated[
    float | None,
    typer.Option(
        "--sparse-threshold",
        metavar="LOGIT",
        show_default=False,
        help="What a neuron's logit has to reach, before LLAMA_SPARSE_PRED_THRESHOLD and the"
        " file's own.",
    ),
]
Union = Annotated[
    bool, typer.Option("--union", help="A neuron that one token of a step needs serves them all.")
]
VramBudget = Annotated[
    float,
    typer.Option("--vram-budget", metavar="GIB", help="GPU memory for neurons; -1: what is free."),
]
Activation = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="How often neurons fire: a folder of activation_{i}.pt, or .npz.",
        show_default=False,
    ),
]
ResetGpuIndex = Annotated[
    bool, typer.Option("--reset-gpu-index", help="Place anew, whatever is kept.")
]
DisableGpuIndex = Annotated[
    bool, typer.Option("--disable-gpu-index", help="Use no index: no neuron on the GPU.")
]
RamBudget = Annotated[
    str,
    typer.Option(
        "--ram-budget",
        metavar="SIZE",
        help="Most memory, such as 600MiB: weights beyond it are read from disk all along.",
        show_default=False,
    ),
]
Draft = Annotated[
    str,
    typer.Option(
        "--draft", metavar="MODEL", help="A smaller model that drafts tokens.", show_default=False
    ),
]
Speculate = Annotated[
    str,
    typer.Option(
        "--speculate",
        metavar="KIND",
        help="Draft by linear, tree (a draft model's or, with --draft-threshold, the model's own),"
        " lookup, trie or lookahead.",
        show_default=False,
    ),
]
DraftMax = Annotated[
    int | None, typer.Option("--draft-max", help="Most tokens of a draft.", show_default=False)
]
DraftMin = Annotated[int, typer.Option("--draft-min", help="Shorter drafts are not used.")]
DraftPMin = Annotated[
    float, typer.Option("--draft-p-min", help="Drafting ends before a token less likely.")
]
DraftPSplit = Annotated[
    float, typer.Option("--draft-p-split", help="A tree forks at tokens this likely.")
]
DraftParallel = Annotated[int, typer.Option("--draft-parallel", help="Most branches of a tree.")]
DraftThreshold = Annotated[
    float | None,
    typer.Option(
        "--draft-threshold",
        metavar="LOGIT",
        help="A sparse model drafts for itself with the neurons that reach this.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Predict = Annotated[int, typer.Option("-n", "--predict", help="Most tokens; -1: no limit.")]
Seed = Annotated[
    int | None, typer.Option("-s", "--seed", help="Same seed, same text; random if absent.")
]
Temperature = Annotated[float, typer.Option("--temp", help="0: always the likeliest token.")]
TopK = Annotated[int, typer.Option("--top-k", help="Keep the k likeliest; 0: off.")]
TopP = Annotated[float, typer.Option("--top-p", help="Keep the smallest set of this probability.")]
MinP = Annotated[float, typer.Option("--min-p", help="Keep what is this likely against the best.")]
Typical = Annotated[float, typer.Option("--typical", help="Locally typical sampling; 1: off.")]
RepeatPenalty = Annotated[float, typer.Option("--repeat-penalty", help="1: off.")]
PresencePenalty = Annotated[float, typer.Option("--presence-penalty", help="0: off.")]
FrequencyPenalty = Annotated[float, typer.Option("--frequency-penalty", help="0: off.")]
Mirostat = Annotated[int, typer.Option("--mirostat", help="1 or 2; 0: off.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Never end by itself.")]
