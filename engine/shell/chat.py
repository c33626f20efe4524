"""assay chat: talk to a model by its own chat template."""

import sys
from typing import Annotated

import typer

from engine.shell import options as o


def chat(
    model: o.ModelName,
    system: Annotated[str | None, typer.Option(help="What the system message says.")] = None,
    predict: o.Predict = 512,
    threads: o.Threads = 0,
    context: o.Context = 0,
    temp: o.Temperature = 0.8,
    top_k: o.TopK = 40,
    top_p: o.TopP = 0.95,
    min_p: o.MinP = 0.05,
    seed: o.Seed = None,
    kv: o.KvFormat = "F16",
    numerics: o.Numerics = "exact",
    tune: o.Tune = True,
    pinned: o.Pinned = False,
    device: o.Device = "cpu",
    gpu_layers: o.GpuLayers = -1,
    keep_packed: o.KeepPacked = False,
    variant: o.Variant = None,
    strict: o.Strict = False,
    sparse: o.Sparse = "auto",
    sparse_threshold: o.SparseThreshold = None,
    union: o.Union = False,
    ram_budget: o.RamBudget = "",
) -> None:
    """Talk to a model; an empty line or Ctrl-D ends, Ctrl-C stops an answer."""
    from engine.checks import PromptError
    from engine.sampling_params import SamplingParams
    from engine.shell.show import loaded, print_timings

    params = SamplingParams(
        max_tokens=None if predict < 0 else predict,
        temperature=temp, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
    )  # fmt: skip
    history = [{"role": "system", "content": system}] if system else []
    with loaded(
        model,
        sampling=params,
        tune=tune,
        threads=threads,
        context=context,
        kv_format=kv,
        numerics=numerics,
        pinned=pinned,
        device=device,
        gpu_layers=gpu_layers,
        keep_packed=keep_packed,
        variant=variant,
        strict=strict,
        background=not ram_budget,
        sparse=sparse,
        threshold=sparse_threshold,
        union=union,
        ram_budget=ram_budget,
    ) as engine:
        while (line := _ask()) is not None:
            history.append({"role": "user", "content": line})
            answer: list[str] = []
            try:
                for piece in engine.chat(history, params):
                    answer.append(piece.text)
                    print(piece.text, end="", flush=True)
            except KeyboardInterrupt:
                print(" [stopped]", end="", flush=True)
            except PromptError as error:
                history.pop()
                print(f"({error}; your last message is forgotten)", file=sys.stderr)
                continue
            print()
            history.append({"role": "assistant", "content": "".join(answer)})
        print_timings(engine)


def _ask() -> str | None:
    """The user's next line; None when there is none."""
    try:
        line = input("> " if sys.stdin.isatty() else "")
    except EOFError:
        return None
    return line if line.strip() else None
