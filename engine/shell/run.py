"""assay run: continue a prompt."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from engine.shell import options as o

GREEN, PLAIN = "\x1b[32m", "\x1b[0m"


def run(
    model: o.ModelName,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="Text to continue.")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--file", help="Read the prompt here.")] = None,
    predict: o.Predict = 128,
    threads: o.Threads = 0,
    context: o.Context = 0,
    batch: o.Batch = 512,
    temp: o.Temperature = 0.8,
    top_k: o.TopK = 40,
    top_p: o.TopP = 0.95,
    min_p: o.MinP = 0.05,
    typical: o.Typical = 1.0,
    repeat_penalty: o.RepeatPenalty = 1.0,
    presence_penalty: o.PresencePenalty = 0.0,
    frequency_penalty: o.FrequencyPenalty = 0.0,
    mirostat: o.Mirostat = 0,
    seed: o.Seed = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may repeat.")
    ] = None,
    ignore_eos: o.IgnoreEos = False,
    context_shift: Annotated[
        bool, typer.Option("--context-shift", help="Forget the older half when full.")
    ] = False,
    keep: Annotated[int, typer.Option(help="First tokens that a shift never forgets.")] = 0,
    session: Annotated[
        Path | None, typer.Option(help="Go on from this file if it exists; write it at the end.")
    ] = None,
    kv: o.KvFormat = "F16",
    numerics: o.Numerics = "exact",
    tune: o.Tune = True,
    pinned: o.Pinned = False,
    device: o.Device = "cpu",
    gpu_layers: o.GpuLayers = -1,
    variant: o.Variant = None,
    strict: o.Strict = False,
    keep_packed: o.KeepPacked = False,
    sparse: o.Sparse = "auto",
    sparse_threshold: o.SparseThreshold = None,
    union: o.Union = False,
    vram_budget: o.VramBudget = 0.0,
    activation: o.Activation = None,
    reset_gpu_index: o.ResetGpuIndex = False,
    disable_gpu_index: o.DisableGpuIndex = False,
    ram_budget: o.RamBudget = "",
    draft: o.Draft = "",
    speculate: o.Speculate = "",
    draft_max: o.DraftMax = None,
    draft_min: o.DraftMin = 0,
    draft_p_min: o.DraftPMin = 0.75,
    draft_p_split: o.DraftPSplit = 0.1,
    draft_parallel: o.DraftParallel = 4,
    draft_threshold: o.DraftThreshold = None,
    colour: Annotated[
        bool, typer.Option("--colour", "--color", help="Show drafted tokens in colour.")
    ] = False,
    as_json: o.Json = False,
) -> None:
    """Continue a prompt with a GGUF model, and say where the time went."""
    from engine.aside import check
    from engine.sampling_params import SamplingParams
    from engine.session import restore, save
    from engine.shell.show import loaded, print_timings, timings_json
    from engine.speculation.settings import settings

    params = SamplingParams(
        max_tokens=None if predict < 0 else predict,
        temperature=temp,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        typical_p=typical,
        repetition_penalty=repeat_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        mirostat=mirostat,
        seed=seed,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    speculation = settings(
        speculate or ("linear" if draft or draft_threshold is not None else ""),
        draft_max=draft_max, draft_min=draft_min, draft_p_min=draft_p_min, p_split=draft_p_split,
        n_parallel=draft_parallel, threshold=draft_threshold,
    )  # fmt: skip
    text = prompt_text(prompt, file)
    if session is not None:
        check(session)
    with loaded(
        model, threads=threads, context=context, batch=batch, kv_format=kv, numerics=numerics,
        pinned=pinned, device=device, gpu_layers=gpu_layers, variant=variant, strict=strict,
        keep_packed=keep_packed, sparse=sparse, threshold=sparse_threshold, union=union,
        vram_budget=vram_budget, activation=activation,
        reset_gpu_index=reset_gpu_index, disable_gpu_index=disable_gpu_index,
        ram_budget=ram_budget, draft=draft or None, speculation=speculation, sampling=params,
        tune=tune,
    ) as engine:  # fmt: skip
        resume = session is not None and session.exists()
        if resume:
            assert session is not None
            tokens = restore(engine, session)
            tokens += engine.tokenizer.encode(text, add_special=False, at_start=False)
        else:
            tokens = engine.encode(text)
        pieces = engine.generate(
            tokens, params, context_shift=context_shift, keep=keep, resume=resume
        )
        if as_json:
            found = list(pieces)
            result = {
                "prompt": text,
                "text": "".join(piece.text for piece in found),
                "tokens": [piece.token for piece in found if piece.token is not None],
                "finish_reason": found[-1].finish_reason if found else None,
                "timings": timings_json(engine),
                "notes": engine.model.notes,
            }
            print(json.dumps(result))
        else:
            sys.stdout.write(text)
            for piece in pieces:
                shown = f"{GREEN}{piece.text}{PLAIN}" if colour and piece.drafted else piece.text
                sys.stdout.write(shown)
                sys.stdout.flush()
            sys.stdout.flush()
            print_timings(engine)
        if session is not None:
            save(engine, session)


def prompt_text(prompt: str | None, file: Path | None) -> str:
    """The prompt from the command line, a file or, given neither, standard input."""
    if prompt is not None and file is not None:
        raise typer.BadParameter("give --prompt or --file, not both")
    if prompt is not None:
        return prompt
    if file is None and sys.stdin.isatty():
        raise typer.BadParameter("give a prompt: -p TEXT, -f FILE or standard input")
    data = file.read_bytes() if file else sys.stdin.buffer.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        source = file or "standard input"
        raise ValueError(f"{source}: byte {error.start} is not valid UTF-8") from None
