"""assay run: continue a prompt."""

import json
import sys
from typing import TYPE_CHECKING, Any

from engine.shell.command_line import options as o
from engine.shell.command_line.groups import option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from engine.engine import Engine
    from engine.generation.completion import Piece

GREEN, PLAIN = "\x1b[32m", "\x1b[0m"


def run(
    model: o.ModelName,
    *,
    text: o.Text,
    display_prompt: bool = option(True, "Print the prompt before the continuation."),
    as_json: o.Json = False,
    sampling: o.Sampling,
    loading: o.Loading,
    drafting: o.Drafting,
) -> None:
    """Continue a prompt with a GGUF model, and say where the time went."""
    from engine.atomic_write import check
    from engine.shell.prompts import prompt_text, unescaped_sampling
    from engine.shell.show import loaded, print_timings

    if text.quiet:
        from engine.shell.terminal import silence

        silence()
    if text.escape:
        sampling = unescaped_sampling(sampling)
    params, speculation = sampling.params(), drafting.settings()
    prompt = prompt_text(text.prompt, text.file, text.escape)
    if text.session is not None:
        check(text.session)
    with loaded(
        model,
        loading,
        draft=drafting.draft or None,
        speculation=speculation,
        sampling=params,
    ) as engine:
        resume = text.session is not None and text.session.exists()
        if resume:
            assert text.session is not None
            tokens = engine.restore(text.session)
            tokens += engine.tokenizer.encode(prompt, add_special=False, at_start=False)
        else:
            tokens = engine.encode(prompt)
        pieces: Iterable[Piece] = ()
        if not sampling.nothing:
            pieces = engine.stream(
                tokens,
                params,
                context_shift=text.shifts(sampling),
                keep=text.kept(tokens),
                resume=resume,
            )
        elif text.session is not None:  # which will hold the prompt for another time
            engine.text.prefill(tokens, engine.timings.prompt)
        if as_json:
            print(
                json.dumps(
                    {"prompt": prompt, **completion_json(engine, list(pieces), params.logprobs)}
                )
            )
        else:
            sys.stdout.write(prompt if display_prompt and not text.quiet else "")
            for piece in pieces:
                sys.stdout.write(coloured(piece) if text.colour else piece.text)
                sys.stdout.flush()
            if text.quiet and sys.stdout.isatty():
                sys.stdout.write("\n")
            sys.stdout.flush()
            if not text.quiet:
                print_timings(engine)
        if text.session is not None:
            engine.save(text.session)


def coloured(piece: "Piece") -> str:
    """Green if it was drafted."""
    return f"{GREEN}{piece.text}{PLAIN}" if piece.drafted else piece.text


def completion_json(
    engine: "Engine", pieces: "list[Piece]", logprobs: int | None
) -> dict[str, Any]:
    """A completion for programs."""
    from engine.shell.show import timings_json

    found: dict[str, Any] = {
        "text": "".join(piece.text for piece in pieces),
        "tokens": [piece.token for piece in pieces if piece.token is not None],
        "finish_reason": pieces[-1].finish_reason if pieces else "length",
    }
    if logprobs is not None:
        found["logprobs"] = [
            {"token": p.token, "logprob": p.logprob, "top": [list(top) for top in p.top_logprobs]}
            for p in pieces
            if p.token is not None
        ]
    return found | {"timings": timings_json(engine), "notes": engine.model.notes}
