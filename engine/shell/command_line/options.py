"""Options that several commands share, in groups, and such as commands take alone.

A field has the name that the engine's own dataclass has for it, so that a group is handed on as it
is. Nothing of the engine is imported here: that takes a second, which `--help` can do without.
"""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engine.shell.command_line.command import as_usage, spelt, typed
from engine.shell.command_line.forms import FORMS, form, text_of
from engine.shell.command_line.groups import of, option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engine.options import Options
    from engine.sampling.params import SamplingParams
    from engine.speculation.settings import Settings


UNTIL_FULL = -2  # tokens, as in llama.cpp: until the context is full, though it could be shifted
UNLIMITED = (-1, UNTIL_FULL)


def _threads(value: int) -> int:
    return 0 if value == -1 else value


def _one_format(value: str) -> str:
    """The format of keys and values, which have one here. Wrong usage if two were typed."""
    keys, values = (
        next((text for name, text in reversed(typed("kv_format")) if name in names), None)
        for names in (("-ctk", "--cache-type-k"), ("-ctv", "--cache-type-v"))
    )
    if keys and values and keys.upper() != values.upper():
        raise typer.BadParameter(
            f"keys and values have one format here: -ctk {keys} and -ctv {values} differ"
        )
    return value.upper()


@dataclass(frozen=True, slots=True)
class Loading:
    """How a model is loaded: what of engine.options.Options the program offers."""

    threads: int = option(0, "0 or -1: one per core that it may use.", "-t", reads=_threads)
    context: int = option(0, "Tokens of context; 0: the model's own.", "-c", also="--ctx-size")
    batch: int = option(
        512, "Most tokens of one step.", "-b", also="--batch-size -ub --ubatch-size"
    )
    kv_format: str = option(
        "F16",
        "Format of the cache: F32, F16, Q8_0, Q4_0, or KIVI2: two bits but for the latest tokens.",
        "--kv",
        reads=_one_format,
        also="-ctk --cache-type-k -ctv --cache-type-v",
        metavar="FORMAT",
    )
    kv_residual: int = option(128, "With KIVI2, so many tokens at least stay in F16.")
    kv_policy: str = option(
        "",
        "Which cells are kept once a prompt is read, e.g. snapkv:capacity=1024; or streaming_llm,"
        " knorm, keydiff, h2o, pyramidkv; or read by each token, quest:budget=1024; or by which"
        " heads, duoattention:heads=FILE; or shared by two blocks, minicache.",
        metavar="NAME",
    )
    prompt_attention: str = option(
        "",
        "Prompts are read by sparse attention, e.g. minference:columns=1000,diagonals=6096.",
        metavar="NAME",
    )
    numerics: str = option(
        "exact", "exact, or fast: weights may be rounded to bfloat16.", metavar="KIND"
    )
    tune: bool = option(
        True,
        "Measure what suits this machine best when a model is first loaded; same bits.",
    )
    pinned: bool = option(False, "Keep each thread to a core of its own.")
    device: str = option(
        "cpu", "cpu, or cuda: a GPU runs the last of the model's blocks, or all.", metavar="NAME"
    )
    gpu_layers: int = option(
        -1, "Blocks on the GPU, the last ones; -1: all.", "-ngl", also="--n-gpu-layers"
    )
    n_cpu_moe: int = option(
        0, "Of so many blocks, the first ones, experts stay on the CPU.", also="-ncmoe"
    )
    cpu_moe: bool = option(False, "All experts stay on the CPU.", also="-cmoe")
    variant: str | None = option(None, "This variant alone, where an op has it.", metavar="NAME")
    strict: bool = option(False, "Stop where a kernel fails its trial.")
    keep_packed: bool = option(False, "Keep packed weights on disk for the next load.")
    sparse: str = option(
        "auto", "Of a sparse model, skip neurons: auto (where it pays), on or off.", metavar="MODE"
    )
    threshold: float | None = option(
        None,
        "What a neuron's logit has to reach, before LLAMA_SPARSE_PRED_THRESHOLD and the file's"
        " own.",
        "--sparse-threshold",
        metavar="LOGIT",
    )
    union: bool = option(False, "A neuron that one token of a step needs serves them all.")
    vram_budget: float = option(0.0, "GPU memory for neurons; -1: what is free.", metavar="GIB")
    activation: Path | None = option(
        None, "How often neurons fire: a folder of activation_{i}.pt, or .npz.", metavar="PATH"
    )
    reset_gpu_index: bool = option(False, "Place anew, whatever is kept.")
    disable_gpu_index: bool = option(False, "Use no index: no neuron on the GPU.")
    ram_budget: str = option(
        "",
        "Most memory, such as 600MiB: weights beyond it are read from disk all along.",
        metavar="SIZE",
    )

    def options(self, **more: Any) -> "Options":
        """As the engine takes them, with others that are none of the user's; wrong usage where it
        does not."""
        from engine.options import Options
        from engine.policies.minference import parse_prompt_attention
        from engine.policies.table import parse_policy

        given = asdict(self)
        with as_usage():
            given["kv_policy"] = parse_policy(self.kv_policy) if self.kv_policy else None
            sparse = self.prompt_attention
            given["prompt_attention"] = parse_prompt_attention(sparse) if sparse else None
            return Options(**given | more)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen and when a text ends: what of SamplingParams the program offers."""

    max_tokens: int = option(
        128,
        "Most tokens; -1: no limit, -2: until the context is full.",
        "-n",
        "--predict",
        also="--n-predict",
    )
    temperature: float = option(
        0.8, "0: always the likeliest token.", "--temp", also="--temperature"
    )
    top_k: int = option(40, "Keep the k likeliest; 0: off.")
    top_p: float = option(0.95, "Keep the smallest set of this probability; 1: off.")
    min_p: float = option(0.05, "Keep what is this likely against the best; 0: off.")
    typical_p: float = option(
        1.0, "Locally typical sampling; 1: off.", "--typical", also="--typical-p"
    )
    top_n_sigma: float = option(
        -1.0, "Keep logits within so many deviations of the best; -1: off.", also="--top-nsigma"
    )
    xtc_probability: float = option(0.0, "How often all but the last likely token go; 0: off.")
    xtc_threshold: float = option(0.1, "Tokens are likely from here; above 0.5: off.")
    repetition_penalty: float = option(
        1.0, "Of tokens that were there; 1: off.", "--repeat-penalty", also="--repetition-penalty"
    )
    presence_penalty: float = option(0.0, "Taken from a token's logit if it was there; 0: off.")
    frequency_penalty: float = option(0.0, "The same for each time that it was there; 0: off.")
    penalty_last_n: int = option(
        64, "How far back these three look; 0: off, -1: over all.", "--repeat-last-n"
    )
    dry_multiplier: float = option(0.0, "Against repeated sequences (DRY); 0: off.")
    dry_base: float = option(1.75, "How fast its penalty grows.")
    dry_allowed_length: int = option(2, "Repetitions of this length go unpunished.")
    dry_penalty_last_n: int = option(64, "How far back it looks; 0: off, -1: over all.")
    dry_sequence_breakers: list[str] | None = option(
        None,
        "Sequences end at this, instead of at newline, colon, quote and star; may repeat; none:"
        " nowhere.",
        "--dry-sequence-breaker",
    )
    dynatemp_range: float = option(0.0, "Temperature moves by so much, by entropy; 0: off.")
    dynatemp_exponent: float = option(1.0, "How entropy moves it.", "--dynatemp-exp")
    mirostat: int = option(0, "1 or 2 instead of filters and penalties; 0: off.")
    mirostat_tau: float = option(
        5.0, "The surprise that it aims at.", "--mirostat-ent", also="--mirostat-tau"
    )
    mirostat_eta: float = option(0.1, "How fast it learns.", "--mirostat-lr", also="--mirostat-eta")
    logit_bias: list[str] | None = option(
        None,
        "Add to a token's logit, as in 15043+1 or 15043-inf; may repeat.",
        "-l",
        metavar="ID±X",
    )
    logprobs: int | None = option(None, "With --json, the likeliest so many of each token.")
    seed: int | None = option(
        None, "Same seed, same text; -1, or none: another text each time.", "-s"
    )
    order: str = option(
        "llama.cpp",
        "llama.cpp filters, then divides by the temperature; vllm divides first.",
        metavar="KIND",
    )
    stop: list[str] | None = option(
        None, "End before this text; may repeat.", "-r", also="--reverse-prompt"
    )
    ignore_eos: bool = option(False, "Never end by itself.")
    json_schema: str | None = option(
        None, "The answer is JSON of this schema.", "-j", metavar="SCHEMA"
    )
    json_schema_file: str | None = option(
        None, "Of the schema in this file.", "-jf", reads=text_of, metavar="FILE"
    )
    grammar: str | None = option(None, "It follows this grammar, in GBNF or Lark.")
    grammar_file: str | None = option(
        None, "The grammar in this file.", reads=text_of, metavar="FILE"
    )
    regex: str | None = option(None, "All of it matches this regular expression.")
    choice: list[str] | None = option(None, "It is this text, or another one; may repeat.")

    @property
    def nothing(self) -> bool:
        """No token is wanted at all."""
        return self.max_tokens == 0

    def params(self) -> "SamplingParams":
        """The parameters as the engine takes them, of one token where none is wanted; wrong usage
        where it does not take them."""
        from engine.sampling.params import SamplingParams

        given = asdict(self) | {
            "max_tokens": None if self.max_tokens in UNLIMITED else self.max_tokens or 1,
            "seed": None if self.seed == -1 else self.seed,
            "stop": self.stop or (),
            "logit_bias": dict(map(_bias, self.logit_bias or ())),
        }
        given["structured_outputs"] = form({field: given.pop(field) for field in FORMS})
        if self.max_tokens < UNTIL_FULL:
            raise typer.BadParameter(
                spelt(
                    f"max_tokens is {self.max_tokens}: want a number from 0 up, -1 or {UNTIL_FULL}"
                )
            )
        if self.seed is not None and self.seed < -1:
            message = f"seed is {self.seed}: want a whole number from 0 up, or -1"
            raise typer.BadParameter(spelt(message))
        breakers = given.pop("dry_sequence_breakers")
        if breakers:
            given["dry_sequence_breakers"] = [b for b in breakers if b != "none"]
        with as_usage():
            return SamplingParams(**given)


def _bias(given: str) -> tuple[int, float]:
    found = re.fullmatch(r"(\d+)([+-].+)", given)
    try:
        return int(found[1]), float(found[2])  # type: ignore[index]
    except (TypeError, ValueError):
        raise typer.BadParameter(
            f"{spelt('logit_bias ')}{given!r}: want a token's id, + or - and a number, as 15043-1.5"
        ) from None


@dataclass(frozen=True, slots=True)
class Drafting:
    """Who drafts tokens, and how."""

    draft: str = option(
        "",
        "A smaller model that drafts tokens.",
        also="-md --model-draft --spec-draft-model",
        metavar="MODEL",
    )
    speculate: str = option(
        "",
        "Draft by linear, tree (a draft model's or, with --draft-threshold, the model's own),"
        " lookup, trie, lookahead or mtp (the model's own multi-token prediction blocks).",
        metavar="KIND",
    )
    draft_max: int | None = option(
        None, "Most tokens of a draft.", also="--draft-n --spec-draft-n-max"
    )
    draft_min: int = option(
        0, "Shorter drafts are not used.", also="--draft-n-min --spec-draft-n-min"
    )
    draft_p_min: float = option(
        0.75, "Drafting ends before a token less likely.", also="--spec-draft-p-min"
    )
    p_split: float = option(
        0.1, "A tree forks at tokens this likely.", "--draft-p-split", also="--spec-draft-p-split"
    )
    n_parallel: int = option(4, "Most branches of a tree.", "--draft-parallel")
    draft_threshold: float | None = option(
        None, "A sparse model drafts for itself with the neurons that reach this.", metavar="LOGIT"
    )

    def settings(self) -> "Settings | None":
        """The settings of the kind asked for, or of a draft model's; None where nothing drafts."""
        from engine.speculation.settings import settings

        drafts = self.draft or self.draft_threshold is not None
        kind = self.speculate or ("linear" if drafts else "")
        with as_usage(threshold="draft_threshold"):
            return settings(kind, threshold=self.draft_threshold, **asdict(self))


@dataclass(frozen=True, slots=True)
class Text:
    """What is continued and how, of commands that write."""

    prompt: str | None = option(None, "Text to continue; in chat the first message.", "-p")
    file: Path | None = option(None, "Read it here; - is standard input.", "-f")
    escape: bool = option(True, r"\n, \t, \x41 and the like in texts mean what they do in C.", "-e")
    context_shift: bool = option(False, "Forget the older half when full.")
    keep: int = option(0, "First tokens that a shift never forgets; -1: the prompt.")
    session: Path | None = option(None, "Go on from this file if it exists; write it at the end.")
    colour: bool = option(
        False, "Show drafted tokens in colour.", "--colour", "--color", also="-co"
    )
    quiet: bool = option(False, "Print the text alone: no prompt, times, notes or bars.", "-q")

    def shifts(self, sampling: Sampling) -> bool:
        """Whether a full context goes on without its older half."""
        return self.context_shift and sampling.max_tokens != UNTIL_FULL

    def kept(self, prompt: "Sequence[int]") -> int:
        """How many of the first tokens a shift never forgets."""
        return len(prompt) if self.keep == -1 else self.keep


TEMPLATE = option(
    "",
    "How messages become a prompt, if not as the model's file says: chatml, llama3, gemma, mistral,"
    " phi3 and others by name, or a file in Jinja.",
    also="--chat-template --chat-template-file",
    metavar="NAME",
)
ModelName = Annotated[
    str, typer.Argument(metavar="MODEL", help="A GGUF file, hf:OWNER/REPO:FILE, or e.g. story.")
]
TextFile = Annotated[Path, typer.Argument(metavar="FILE", help="A text in UTF-8; - reads stdin.")]
Chunk = Annotated[
    int,
    typer.Option(
        "-c", "--context", help="Tokens of a chunk; 0: a base's, or 512 if the model has them."
    ),
]
Chunks = Annotated[int | None, typer.Option(help="Most chunks; all by default.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Threads = Annotated[int, of(Loading, "threads")]
