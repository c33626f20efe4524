"""Pages that `mkdocs build` generates: from files outside docs/, and from the program's own tables
(commands, llama.cpp's options, families)."""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer import Context
from typer.main import get_command

from conformance.support.models.asked_of_llama_cpp import (
    AGREED,
    IN_SUPERBLOCKS,
    MIXTURES,
    ON_FOLDERS,
    ROUNDED,
)
from conformance.support.models.family_configs import CONFIGS
from conformance.support.models.small_recurrent import RECURRENT
from engine.convert.table import FAMILIES as CONVERTED
from engine.models.table import FAMILIES
from engine.shell.command_line.groups import ALSO
from engine.shell.command_line.words import foreign_options
from engine.shell.program import app

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {  # files outside docs/ that are pages
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "data/README.md": "embedded.md",
    "LICENSE": "licence.md",
}
# GGUF's names of architectures that have another name in transformers.
NAMES = {
    "gpt_neox": "gptneox", "phi": "phi2", "cohere": "command-r", "gemma3_text": "gemma3",
    "gemma4_text": "gemma4", "ministral3": "mistral3", "hunyuan_v1_dense": "hunyuan-dense",
    "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "glm4_moe": "glm4moe",
    "qwen2_vl": "qwen2vl", "qwen2_5_vl": "qwen2vl", "qwen3_vl": "qwen3vl",
    "qwen3_vl_moe": "qwen3vlmoe", "minimax_m2": "minimax-m2", "hunyuan_v1_moe": "hunyuan-moe",
    "ernie4_5_moe": "ernie4_5-moe", "lfm2_moe": "lfm2moe",
    "granitemoehybrid": "granitehybrid",
    "mistral": "llama", "olmo3": "olmo2", "mixtral": "llama", "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe", "granitemoeshared": "granitemoe", "gpt_oss": "gpt-oss",
    "qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
}  # fmt: skip
LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")
EXTRA = re.compile(r"\s*\[(default: [^\]]*|required)\]")  # columns of their own here
ABOUT = {
    "decisions": (
        "Decisions",
        "Design decisions with their context and consequences.",
    ),
    "reports": (
        "Reports",
        "Measurements written by programs of `bench/`, each with its date and machine.",
    ),
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand `FOLDER/*` in the navigation to all pages of the folder."""
    assert config.nav is not None
    config.nav = [
        {title: list(_listed(where.removesuffix("/*"))) if str(where).endswith("/*") else where}
        for entry in config.nav
        for title, where in entry.items()
    ]
    return config


def _listed(folder: str) -> Iterator[str | dict[str, str]]:
    yield f"{folder}/index.md"
    for path in sorted((ROOT / "docs" / folder).glob("*.md")):
        yield {_title(path): f"{folder}/{path.name}"}


def _title(path: Path) -> str:
    first, *_ = path.read_text().splitlines()
    return first.removeprefix("# ")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for source, page in ELSEWHERE.items():
        alone = "---\nhide: [navigation]\n---\n" if page == "index.md" else ""
        files.append(File.generated(config, page, content=alone + _moved(source)))
    for folder, (title, about) in ABOUT.items():
        pages = sorted((ROOT / "docs" / folder).glob("*.md"))
        rows = "".join(f"- [{_title(path)}]({path.name})\n" for path in pages)
        text = f"# {title}\n\n{about}\n\n{rows}"
        files.append(File.generated(config, f"{folder}/index.md", content=text))
    files.append(File.generated(config, "cli.md", content="\n".join(_reference())))
    files.append(File.generated(config, "llama_cpp_words.md", content="\n".join(_words())))
    files.append(File.generated(config, "families.md", content="\n".join(_families())))
    return files


def _families() -> Iterator[str]:
    """Every supported architecture, from the engine's table and the tests' checkpoints."""
    yield "# Families\n\nGenerated from the engine's table and the tests' checkpoints.\n"
    yield (
        "Every architecture's logits are tested against its formula in float64 (NMSE at most"
        " 1e-10), on a CPU and on the emulated GPU, and are the same bits for any threads,"
        " chunks of a prompt and batches. The last column lists small random checkpoints of"
        " transformers that `assay convert` reads; their logits in F32 are tested against"
        " transformers' (NMSE at most 1e-11) where it is installed: `make test-transformers`, as"
        " in CI. The llama.cpp column lists the formats in which llama.cpp's logits for the same"
        " file are compared (`make test-peers`): in F32 to 1e-10 (recurrent models 1e-11; models"
        " with llama.cpp's GELU table in F16 to its step size), in F16 and block formats with"
        " the formula that [rounds as llama.cpp does](peers.md). In block formats the engine's"
        " logits may differ from llama.cpp's by two such roundings.\n"
    )
    of = {name: NAMES.get(one["model_type"], one["model_type"]) for name, one in CONFIGS.items()}
    if strangers := set(of.values()) - FAMILIES.keys():
        raise ValueError(f"NAMES lacks what GGUF calls {', '.join(sorted(strangers))}")
    floats = {small.architecture for small in (*AGREED, *MIXTURES, *RECURRENT.values())}
    asked = {"F32": floats | {of[name] for name in ON_FOLDERS}}
    asked["F16"] = {small.architecture for small in ROUNDED}
    asked["Q8_0, Q4_K_M"] = set(IN_SUPERBLOCKS)
    yield "| architecture | graph | `assay convert` | llama.cpp | checkpoints |"
    yield "| --- | --- | --- | --- | --- |"
    for name, family in FAMILIES.items():
        module = family.block.__module__.rpartition(".")[2]
        known = ", ".join(one.about for one in CONVERTED if one.gguf == name)
        held = [checkpoint for checkpoint, one in of.items() if one == name]
        shown = "; ".join(held) or ("[its own page](peers.md)" if name == "llama" else "")
        peer = ", ".join(form for form, names in asked.items() if name in names)
        peer = "[its own page](peers.md)" if name == "llama" else peer
        row = f"`{name}`", f"`engine/models/{module}.py`", _cell(known), peer, _cell(shown)
        yield f"| {' | '.join(row)} |"


def _moved(source: str) -> str:
    """The text of a file outside docs/, with links relative to its page."""
    text = (ROOT / source).read_text()
    if not source.endswith(".md"):
        return "# Licence\n\n" + text

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        page = ELSEWHERE.get(target) or target.removeprefix("docs/")
        if page.endswith("decisions"):
            page += "/index.md"
        return f"]({page}{found[2] or ''})"

    return LINK.sub(link, text)


def _reference() -> Iterator[str]:
    """Every command with its arguments and options, from the program itself."""
    program: Any = get_command(app)
    commands = {name: program.commands[name] for name in program.commands}
    yield f"# Commands\n\n{program.help}\n"
    yield (
        "This page is generated from the program; `assay COMMAND --help` shows the same."
        " Exit codes are 0 done, 1 failed with one line on stderr, 2 wrong usage.\n"
    )
    yield f"{program.epilog}\n"
    yield "| command | |\n| --- | --- |"
    for name, command in commands.items():
        yield f"| [`{name}`](#assay-{name}) | {_cell(command.get_short_help_str(200))} |"
    for name, command in commands.items():
        yield from _section(name, command)
        for own, part in getattr(command, "commands", {}).items():
            yield from _section(f"{name} {own}", part)


def _section(name: str, command: Any) -> Iterator[str]:
    context = Context(command, info_name=f"assay {name}")
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"\n## assay {name}\n\n{command.help}\n\n```text\nassay {name} {pieces}\n```\n"
    yield "| | default | |\n| --- | --- | --- |"
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        names, told = record
        told = EXTRA.sub("", told)
        yield f"| `{_cell(names)}` | {_default(parameter)} | {_cell(told)} |"


def _words() -> Iterator[str]:
    """llama.cpp's options: our names for them, or the alternative."""
    yield "# llama.cpp options\n\nGenerated from the program's tables.\n"
    yield "## Accepted under their names\n"
    yield "| llama.cpp | here |\n| --- | --- |"
    names: dict[str, list[str]] = {}
    for other, ours in ALSO.items():
        names.setdefault(ours, []).append(other)
    for ours, others in names.items():
        yield f"| {_code(others)} | `{ours}` |"
    for refused, title in ((False, "Accepted without effect"), (True, "Refused")):
        yield f"\n## {title}\n\n| llama.cpp | |\n| --- | --- |"
        told: dict[str, list[str]] = {}
        for name, option in foreign_options().items():
            if option.refused == refused:
                told.setdefault(option.about, []).append(name)
        for about, others in told.items():
            yield f"| {_code(others)} | {_cell(about)} |"


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _default(parameter: Any) -> str:
    """The default to show; empty if it is off, absent or in the help text."""
    default = parameter.default
    if parameter.required:
        return "required"
    if default is None or default is False or callable(default):
        return ""
    if default is True:
        return f"`{parameter.opts[0]}`"
    shown = str(default) and getattr(parameter, "show_default", True)
    return f"`{default}`" if shown else ""


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
