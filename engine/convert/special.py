"""Special tokens' ids, BOS and EOS around a text, and chat templates."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf.constants import Keys as Names

from engine.convert.checkpoint import Checkpoint
from engine.convert.json_files import CheckpointError, read_json
from engine.convert.tokens import Tokens
from engine.gguf import writer as gw
from engine.tokenizer import Tokenizer

KEYS = {
    "bos": Names.Tokenizer.BOS_ID,
    "eos": Names.Tokenizer.EOS_ID,
    "unk": Names.Tokenizer.UNK_ID,
    "sep": Names.Tokenizer.SEP_ID,
    "pad": Names.Tokenizer.PAD_ID,
    "mask": Names.Tokenizer.MASK_ID,
}
FURTHER_ENDS = (Names.Tokenizer.EOT_ID, Names.Tokenizer.EOM_ID)


def special_keys(checkpoint: Checkpoint, tokens: Tokens) -> gw.Keys:
    """Ids of the special tokens, and whether BOS and EOS are added to a text.

    A token's name in tokenizer_config.json takes precedence over its id in config.json, in
    generation_config.json, and in the vocabulary's own file.
    """
    tokenizer = checkpoint.json("tokenizer_config.json")
    id_of = {text: i for i, text in enumerate(tokens.texts)}
    ids = dict(tokens.named)
    for name in KEYS:
        text = _text(tokenizer.get(f"{name}_token"))
        told = [id_of[text]] if text in id_of else _ids_of(checkpoint, f"{name}_token_id", tokens)
        if told:
            ids[name] = told[0]
    keys = {KEYS[name]: gw.u32(i) for name, i in ids.items()}
    around = _around(checkpoint.json("tokenizer.json"), id_of)
    for name, default in (("bos", tokens.model == "llama"), ("eos", False)):
        wanted = tokenizer.get(f"add_{name}_token")
        if not isinstance(wanted, bool):
            wanted = ids.get(name) in around[name] if around else default
        keys[f"tokenizer.ggml.add_{name}_token"] = gw.boolean(wanted and name in ids)
    return keys


def further_ends(checkpoint: Checkpoint, tokens: Tokens, tokenizer: Tokenizer) -> gw.Keys:
    """Keys for further end-of-text tokens, where their names do not tell."""
    ends = _ids_of(checkpoint, "eos_token_id", tokens)
    unknown = [i for i in ends if i not in tokenizer.eog_ids]
    for i in unknown[len(FURTHER_ENDS) :]:
        tokens.notes.append(f"{tokens.texts[i]!r} ends a text, too, which GGUF has no key for")
    return {key: gw.u32(i) for key, i in zip(FURTHER_ENDS, unknown, strict=False)}


def template_keys(checkpoint: Checkpoint) -> gw.Keys:
    """The chat template; named ones are stored under their names."""
    folder = checkpoint.folder
    place = folder / "tokenizer_config.json"
    found: Any = checkpoint.json(place.name).get("chat_template")
    if (path := folder / "chat_template.json").exists():
        found = read_json(path).get("chat_template", found)
    if (path := folder / "chat_template.jinja").exists():
        found = [{"name": "default", "template": _template(path)}]
        more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        found += [{"name": path.stem, "template": _template(path)} for path in more]
    if isinstance(found, str):
        found = [{"name": "default", "template": found}]
    try:
        named = {str(entry["name"]): str(entry["template"]) for entry in found or []}
    except (KeyError, TypeError):
        raise CheckpointError(f"{place}: chat_template is neither a text nor named texts") from None
    default = named.pop("default", None)
    keys = {} if default is None else {Names.Tokenizer.CHAT_TEMPLATE: gw.text(default)}
    if named:
        keys[Names.Tokenizer.CHAT_TEMPLATES] = gw.texts(named)
    return keys | {f"{Names.Tokenizer.CHAT_TEMPLATE}.{n}": gw.text(t) for n, t in named.items()}


def _template(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path}: byte {error.start} is not valid UTF-8") from None


def _text(token: Any) -> str | None:
    """A token's text, given as a string or an object."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _ids_of(checkpoint: Checkpoint, field: str, tokens: Tokens) -> list[int]:
    """The configs' ids for a field: none, one or several in each."""
    told: list[Any] = []
    for config in (checkpoint.config, checkpoint.json("generation_config.json")):
        value = config.get(field)
        told += value if isinstance(value, list) else [value]
    return list(dict.fromkeys(i for i in told if type(i) is int and 0 <= i < len(tokens.texts)))


def _around(file: Mapping[str, Any], id_of: Mapping[str, int]) -> dict[str, list[int]]:
    """The tokens that tokenizer.json puts before and after a text; empty where it does not tell."""
    match file.get("post_processor"):
        case {"processors": list(steps)}:
            pass
        case {"type": str()} as step:
            steps = [step]
        case _:
            return {}
    around: dict[str, list[int]] = {"bos": [], "eos": []}
    for step in steps:
        match step:
            case {"type": "TemplateProcessing", "single": list(single)}:
                side = "bos"
                for entry in single:
                    match entry:
                        case {"SpecialToken": {"id": str(name)}} if name in id_of:
                            around[side].append(id_of[name])
                        case {"Sequence": _}:
                            side = "eos"
    return around
