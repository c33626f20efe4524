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
    """The cache's format, the same for keys and values. A usage error if two were typed."""
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
    """How a model is loaded: the program's part of engine.options.Options."""

    threads: int = option(0, "0 or -1: one per available core.", "-t", reads=_threads)
    context: int = option(0, "Tokens of context; 0: the model's own.", "-c", also="--ctx-size")
    batch: int = option(
        512, "Maximum tokens in one step.", "-b", also="--batch-size -ub --ubatch-size"
    )
    kv_format: str = option(
        "F16",
        "Format of the KV cache: F32, F16, Q8_0, Q4_0, or KIVI2: two bits but for the latest.",
        "--kv",
        reads=_one_format,
        also="-ctk --cache-type-k -ctv --cache-type-v",
        metavar="FORMAT",
    )
    kv_residual: int = option(128, "With KIVI2, at least this many tokens stay in F16.")
    kv_policy: str = option(
        "",
        "KV cache policy: eviction after prefill, e.g. snapkv:capacity=1024 (or streaming_llm,"
        " knorm, keydiff, h2o, pyramidkv); selection by each token, quest:budget=1024; streaming"
        " heads, duoattention:heads=FILE; merging between blocks, minicache.",
        metavar="NAME",
    )
    prompt_attention: str = option(
        "",
        "Sparse attention for prompts, e.g. minference:columns=1000,diagonals=6096.",
        metavar="NAME",
    )
    numerics: str = option(
        "exact", "exact, or fast: weights may be rounded to bfloat16.", metavar="KIND"
    )
    tune: bool = option(
        True,
        "Tune kernels for this machine when a model is first loaded; same bits.",
    )
    pinned: bool = option(False, "Pin each thread to a core.")
    device: str = option(
        "cpu", "cpu, or cuda: a GPU runs the model's last blocks, or all.", metavar="NAME"
    )
    gpu_layers: int = option(
        -1, "Blocks on the GPU, the last ones; -1: all.", "-ngl", also="--n-gpu-layers"
    )
    n_cpu_moe: int = option(0, "Keep the experts of the first N blocks on the CPU.", also="-ncmoe")
    cpu_moe: bool = option(False, "Keep all experts on the CPU.", also="-cmoe")
    variant: str | None = option(None, "Only this variant, where an op has it.", metavar="NAME")
    strict: bool = option(False, "Stop if a kernel fails its trial.")
    keep_packed: bool = option(False, "Store packed weights on disk for the next load.")
    sparse: str = option(
        "auto",
        "Skip a sparse model's inactive neurons: auto (where it pays), on or off.",
        metavar="MODE",
    )
    threshold: float | None = option(
        None,
        "Threshold of a neuron's logit; overrides LLAMA_SPARSE_PRED_THRESHOLD and the file.",
        "--sparse-threshold",
        metavar="LOGIT",
    )
    union: bool = option(
        False, "A neuron that one token of a step needs is used for all its tokens."
    )
    vram_budget: float = option(0.0, "GPU memory for neurons; -1: all free memory.", metavar="GIB")
    activation: Path | None = option(
        None, "How often neurons fire: a folder of activation_{i}.pt, or .npz.", metavar="PATH"
    )
    reset_gpu_index: bool = option(False, "Ignore a stored placement.")
    disable_gpu_index: bool = option(False, "Use no index: no neuron on the GPU.")
    ram_budget: str = option(
        "",
        "Memory budget, e.g. 600MiB: other weights are read from disk while the model runs.",
        metavar="SIZE",
    )

    def options(self, **more: Any) -> "Options":
        """As the engine takes them, with further internal ones; a usage error where it does not."""
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
    """How tokens are sampled and when a text ends: the program's part of SamplingParams."""

    max_tokens: int = option(
        128,
        "Maximum tokens; -1: no limit, -2: until the context is full.",
        "-n",
        "--predict",
        also="--n-predict",
    )
    temperature: float = option(
        0.8, "0: greedy, always the most likely token.", "--temp", also="--temperature"
    )
    top_k: int = option(40, "Keep the k most likely tokens; 0: off.")
    top_p: float = option(0.95, "Keep the smallest set of this probability; 1: off.")
    min_p: float = option(0.05, "Keep tokens at least this likely relative to the best; 0: off.")
    typical_p: float = option(
        1.0, "Locally typical sampling; 1: off.", "--typical", also="--typical-p"
    )
    top_n_sigma: float = option(
        -1.0, "Keep logits within N standard deviations of the best; -1: off.", also="--top-nsigma"
    )
    xtc_probability: float = option(
        0.0, "Probability of removing all but the last likely token (XTC); 0: off."
    )
    xtc_threshold: float = option(0.1, "XTC's threshold of likely tokens; above 0.5: off.")
    repetition_penalty: float = option(
        1.0, "Penalty of repeated tokens; 1: off.", "--repeat-penalty", also="--repetition-penalty"
    )
    presence_penalty: float = option(0.0, "Subtracted from the logit of a repeated token; 0: off.")
    frequency_penalty: float = option(0.0, "Subtracted for each repetition of a token; 0: off.")
    penalty_last_n: int = option(
        64, "Window of these three penalties; 0: off, -1: everything.", "--repeat-last-n"
    )
    dry_multiplier: float = option(0.0, "Penalty of repeated sequences (DRY); 0: off.")
    dry_base: float = option(1.75, "Base of DRY's exponential growth.")
    dry_allowed_length: int = option(2, "Longest repetition that DRY allows.")
    dry_penalty_last_n: int = option(64, "DRY's window; 0: off, -1: everything.")
    dry_sequence_breakers: list[str] | None = option(
        None,
        "Sequences end at this, instead of at newline, colon, quote and star; may repeat; none:"
        " nowhere.",
        "--dry-sequence-breaker",
    )
    dynatemp_range: float = option(0.0, "Range of dynamic temperature, by entropy; 0: off.")
    dynatemp_exponent: float = option(1.0, "Exponent of dynamic temperature.", "--dynatemp-exp")
    mirostat: int = option(0, "Mirostat 1 or 2 instead of filters and penalties; 0: off.")
    mirostat_tau: float = option(
        5.0, "Mirostat's target surprise.", "--mirostat-ent", also="--mirostat-tau"
    )
    mirostat_eta: float = option(
        0.1, "Mirostat's learning rate.", "--mirostat-lr", also="--mirostat-eta"
    )
    logit_bias: list[str] | None = option(
        None,
        "Add to a token's logit, as in 15043+1 or 15043-inf; may repeat.",
        "-l",
        metavar="ID±X",
    )
    logprobs: int | None = option(
        None, "With --json, the N most likely alternatives of each token."
    )
    seed: int | None = option(
        None, "The same seed gives the same text; -1, or none: another text each time.", "-s"
    )
    order: str = option(
        "llama.cpp",
        "llama.cpp filters, then divides by the temperature; vllm divides first.",
        metavar="KIND",
    )
    stop: list[str] | None = option(
        None, "Stop before this text; may repeat.", "-r", also="--reverse-prompt"
    )
    ignore_eos: bool = option(False, "Ignore end-of-generation tokens.")
    json_schema: str | None = option(
        None, "Constrain the answer to JSON of this schema.", "-j", metavar="SCHEMA"
    )
    json_schema_file: str | None = option(
        None, "Read the JSON schema from this file.", "-jf", reads=text_of, metavar="FILE"
    )
    grammar: str | None = option(None, "Constrain the answer to this grammar, in GBNF or Lark.")
    grammar_file: str | None = option(
        None, "Read the grammar from this file.", reads=text_of, metavar="FILE"
    )
    regex: str | None = option(None, "Constrain the answer to this regular expression.")
    choice: list[str] | None = option(
        None, "Constrain the answer to one of these texts; may repeat."
    )

    @property
    def nothing(self) -> bool:
        """Whether no token is wanted."""
        return self.max_tokens == 0

    def params(self) -> "SamplingParams":
        """The parameters as the engine takes them, for one token where none is wanted; a usage
        error where it does not."""
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
    """The drafter and its settings."""

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
        None, "Maximum tokens in a draft.", also="--draft-n --spec-draft-n-max"
    )
    draft_min: int = option(0, "Discard shorter drafts.", also="--draft-n-min --spec-draft-n-min")
    draft_p_min: float = option(
        0.75, "End a draft before a less likely token.", also="--spec-draft-p-min"
    )
    p_split: float = option(
        0.1,
        "A tree branches at tokens at least this likely.",
        "--draft-p-split",
        also="--spec-draft-p-split",
    )
    n_parallel: int = option(4, "Maximum branches of a tree.", "--draft-parallel")
    draft_threshold: float | None = option(
        None, "A sparse model drafts for itself with neurons above this threshold.", metavar="LOGIT"
    )

    def settings(self) -> "Settings | None":
        """The settings of the requested drafter; None without one."""
        from engine.speculation.settings import settings

        drafts = self.draft or self.draft_threshold is not None
        kind = self.speculate or ("linear" if drafts else "")
        with as_usage(threshold="draft_threshold"):
            return settings(kind, threshold=self.draft_threshold, **asdict(self))


@dataclass(frozen=True, slots=True)
class Text:
    """The prompt and the length, for commands that generate."""

    prompt: str | None = option(None, "Text to continue; in chat the first message.", "-p")
    file: Path | None = option(None, "Read the prompt from this file; - is standard input.", "-f")
    escape: bool = option(True, r"\n, \t, \x41 and the like in texts mean what they do in C.", "-e")
    context_shift: bool = option(False, "Drop the older half of a full context and continue.")
    keep: int = option(0, "First tokens that a context shift keeps; -1: the prompt.")
    session: Path | None = option(
        None, "Resume from this session file if it exists; write it at the end."
    )
    colour: bool = option(
        False, "Show drafted tokens in colour.", "--colour", "--color", also="-co"
    )
    quiet: bool = option(
        False, "Print only the text: no prompt, times, notes or progress bars.", "-q"
    )

    def shifts(self, sampling: Sampling) -> bool:
        """Whether a full context drops its older half and continues."""
        return self.context_shift and sampling.max_tokens != UNTIL_FULL

    def kept(self, prompt: "Sequence[int]") -> int:
        """How many of the first tokens a context shift never drops."""
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
Chunks = Annotated[int | None, typer.Option(help="Maximum number of chunks; all by default.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
Threads = Annotated[int, of(Loading, "threads")]
