"""assay batch: answer many prompts of a file, resuming interrupted runs."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from engine.shell.command_line import options as o
from engine.shell.command_line.command import spelt
from engine.shell.command_line.groups import option


def batch(
    model: o.ModelName,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Prompts, one line of JSON each; - reads stdin.")
    ],
    *,
    out: Path = option(Path("batch.jsonl"), "Output file, one line of JSON per answer.", "-o"),
    template: str = o.TEMPLATE,
    parallel: int = option(8, "Maximum number of concurrent prompts.", "-np"),
    quiet: bool = option(
        False, "No progress bar, notes or summary; failing lines are still reported.", "-q"
    ),
    as_json: o.Json = False,
    sampling: o.Sampling,
    loading: o.Loading,
) -> None:
    """Answer many prompts; resume where an earlier run ended.

    A line of FILE is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}, and
    may have an "id" (by default its line number) and "params" with fields of SamplingParams, such
    as {"max_tokens": 20}. A line of OUT has "id", "text", "tokens" and "finish_reason"; it is
    written whole, in the order in which answers are ready, each the answer that its prompt would
    have alone. Ids in OUT are skipped.

    Lines that fail are reported by number on stderr, the others continue, and the exit code is 1.
    """
    from engine.chat_templates import template_source
    from engine.shell.jsonl import Answers, Questions, answer_of, opened
    from engine.shell.show import loaded
    from engine.shell.terminal import progress_bar, silence

    if quiet:
        silence()
    if parallel < 1:
        raise typer.BadParameter(spelt(f"parallel is {parallel}: want a whole number from 1 up"))
    if sampling.nothing:
        raise typer.BadParameter(spelt("max_tokens is 0: an answer has a token at least"))
    params = sampling.params()
    source = template_source(template) if template else None
    lines, total = opened(file)
    with lines, Answers(out, None if str(file) == "-" else file) as answers:
        questions, before = Questions(lines, params, set(answers.ids)), len(answers.ids)
        told: set[int] = set()

        def tell() -> None:
            for number in sorted(questions.failed.keys() - told):
                print(f"{file}:{number}: {questions.failed[number]}", file=sys.stderr, flush=True)
                told.add(number)

        with (
            loaded(model, loading, sampling=params, sequences=parallel) as engine,
            progress_bar() as bar,
        ):
            task = bar.add_task("prompts", total=total, completed=min(before, total or before))
            answered = 0
            requests = questions.requests(lambda messages: engine.encode_chat(messages, source))
            for request in engine.serve_completed(requests):
                if request.error:
                    questions.fails(int(request.id), request.error)
                else:
                    answer = answer_of(request.result(engine.tokenizer))
                    answers.append(questions.ids.pop(request.id), answer)
                    answered += 1
                tell()
                bar.update(task, completed=before + answered + len(told))
            tell()
    if as_json:
        failed = [{"line": n, "error": error} for n, error in sorted(questions.failed.items())]
        result = {"file": str(out), "answered": answered, "before": before, "failed": failed}
        print(json.dumps(result))
    elif not quiet:
        print(f"{out}: {answered} answers" + (f", and {before} from before" if before else ""))
    if questions.failed:
        raise ValueError(f"{file}: {len(questions.failed)} lines have no answer")
