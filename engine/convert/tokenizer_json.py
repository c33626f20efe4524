"""tokenizer.json: the file of Hugging Face's `tokenizers`, whose parts are told by name.

Older byte-level tokenizers, GPT-2's and OPT's, are vocab.json with merges.txt instead: the same
parts, of which the special tokens are told in a third file.

Two kinds of BPE have a name in GGUF. Byte-level ones are "gpt2", with a name for how a text is cut
into words. Those that were made from a SentencePiece model (byte fallback, ▁ for a space) are
"llama": pairs are joined by score there, which is the place of the pair's first merge.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine.convert.json_files import CheckpointError, read_json
from engine.convert.tokens import Tokens
from engine.tokenizer import TokenType
from engine.tokenizer.pre_tokenizers import PRE_TOKENIZERS, PUNCTUATION

VOCAB, MERGES = "vocab.json", "merges.txt"
GPT2 = PRE_TOKENIZERS["gpt-2"].patterns[0]  # ByteLevel's own pattern
DIGITS = {True: r"\p{N}", False: r"\p{N}+"}  # each alone, or runs of them
# Falcon's runs of digits are found among bytes, where its merges leave nothing to part.
FALCON = PRE_TOKENIZERS["falcon"].patterns
FALCON_DIGITS = (*FALCON[:2], DIGITS[False], FALCON[2])
BYTE = re.compile(r"<0x[0-9A-F]{2}>")
MOST_TOKENS = 2**22

Part = Mapping[str, Any]


def contents(path: Path) -> Part:
    """The contents of tokenizer.json, or its equivalent from vocab.json and the files beside it."""
    if path.name != VOCAB:
        return read_json(path)
    vocab, lines = read_json(path), path.with_name(MERGES)
    try:
        merges = lines.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{lines}: cannot be read: {error}") from None
    told: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if path.with_name(name).exists():
            told |= read_json(path.with_name(name))
    texts = (told.get(f"{name}_token") for name in ("bos", "eos", "unk", "pad"))
    texts = (text.get("content") if isinstance(text, dict) else text for text in texts)
    special = sorted({text for text in texts if isinstance(text, str) and text in vocab})
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {
        "added_tokens": [{"id": vocab[t], "content": t, "special": True} | flags for t in special],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": [line for line in merges if line and not line.startswith("#version")],
        },
    }


def encoder(path: Path) -> Callable[[str], list[int]]:
    """The library's own encoder."""
    from tokenizers import Tokenizer

    file = json.dumps(contents(path))
    try:
        library = Tokenizer.from_str(file)
        library.encode("a", add_special_tokens=False)
    except Exception as error:  # the library has no exception type of its own
        raise CheckpointError(f"{path}: {' '.join(str(error).split())}") from None
    return lambda text: list(library.encode(text, add_special_tokens=False).ids)


def read(path: Path) -> Tokens:
    """The vocabulary, without added tokens, of a file that the library accepts."""
    file = contents(path)
    kind = file["model"].get("type", "BPE")
    if kind != "BPE":
        raise CheckpointError(f"{path}: a tokenizer of type {kind}: this engine runs BPE alone")
    steps = _parts(path, file.get("pre_tokenizer"), "pretokenizers")
    level = any(step["type"] == "ByteLevel" for step in steps)
    return _byte_level(path, file, steps) if level else _pieces(path, file, steps)


def _byte_level(path: Path, file: Part, steps: list[Part]) -> Tokens:
    model, notes = file["model"], []
    for step in _parts(path, file.get("normalizer"), "normalizers"):
        if step["type"] != "NFC":
            raise CheckpointError(f"{path}: normalizer {step['type']} has no place in GGUF")
        notes.append("characters are not composed (NFC) before a text is cut: GGUF has no key")
    patterns = tuple(p for step in steps for p in _patterns(path, step))
    patterns = FALCON if patterns == FALCON_DIGITS else patterns
    ignore = bool(model.get("ignore_merges", False))
    names = [
        name
        for name, pre in PRE_TOKENIZERS.items()
        if (pre.patterns, pre.ignore_merges) == (patterns, ignore)
    ]
    if not names:
        raise CheckpointError(
            f"{path}: how it cuts a text into words has no name here that GGUF knows:"
            f" {' then '.join(patterns)}"
        )
    texts, types = _texts(path, model["vocab"])
    merges = [" ".join(pair) for pair in _merges(model)]
    return Tokens("gpt2", names[0], texts, types, merges=merges, notes=notes)


def _patterns(path: Path, step: Part) -> list[str]:
    """Patterns at which a step splits: each match, and each gap between matches, is a word."""
    match step:
        case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": "Isolated"}:
            return [pattern]
        case {"type": "Split", "pattern": {"Regex": str(p)}, "behavior": "Removed", "invert": True}:
            return [p]  # the same where a match begins as the last one ends, as in all we know
        case {"type": "Digits", "individual_digits": bool(alone)}:
            return [DIGITS[alone]]
        case {"type": "Punctuation", "behavior": "Contiguous"}:
            return [PUNCTUATION]
        case {"type": "ByteLevel", "add_prefix_space": False}:
            return [GPT2] if step.get("use_regex", True) else []
    raise CheckpointError(f"{path}: pre-tokenizer {step} has no place in GGUF")


def _pieces(path: Path, file: Part, steps: list[Part]) -> Tokens:
    model = file["model"]
    if not model.get("byte_fallback"):
        raise CheckpointError(
            f"{path}: a BPE of neither bytes nor SentencePiece pieces with byte fallback"
        )
    spaces = _parts(path, file.get("normalizer"), "normalizers") + steps
    prefixes = [_puts_space(path, step) for step in spaces]
    texts, types = _texts(path, model["vocab"])
    for i, text in enumerate(texts):
        if types[i] == TokenType.NORMAL and BYTE.fullmatch(text):
            types[i] = int(TokenType.BYTE)
    named = {}
    if (unknown := model.get("unk_token")) in model["vocab"]:
        named["unk"] = model["vocab"][unknown]
        types[named["unk"]] = int(TokenType.UNKNOWN)
    ranks: dict[str, int] = {}
    pairs = _merges(model)
    for rank, (first, second) in enumerate(pairs):
        ranks.setdefault(first + second, rank)
    scores = [-float(ranks.get(text, len(pairs))) for text in texts]
    flags = {"add_space_prefix": any(prefixes)}
    return Tokens("llama", "default", texts, types, scores, flags=flags, named=named)


def _puts_space(path: Path, step: Part) -> bool:
    """Whether a step that replaces spaces by ▁ also prepends one."""
    match step:
        case {"type": "Prepend", "prepend": "▁"}:
            return True
        case {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}:
            return False
        case {"type": "Metaspace", "replacement": "▁"}:
            return bool(step.get("prepend_scheme", "always") != "never")
        case {"type": "Split", "pattern": {"String": " "}}:
            return False  # Gemma's: its normalizer has left no space to split at
    raise CheckpointError(f"{path}: {step} has no place in GGUF")


def _texts(path: Path, vocab: Mapping[str, int]) -> tuple[list[str], list[int]]:
    """Texts and types by id; ids without a token are unused."""
    found = {i: text for text, i in vocab.items()}
    if len(found) < len(vocab):
        twice = next(text for text, i in vocab.items() if found[i] != text)
        raise CheckpointError(f"{path}: {twice!r} and {found[vocab[twice]]!r} have one id")
    size = max(found, default=-1) + 1
    if size > MOST_TOKENS:
        raise CheckpointError(f"{path}: {found[size - 1]!r} has an id beyond {MOST_TOKENS}")
    texts = [found.get(i, f"[PAD{i}]") for i in range(size)]
    kinds = (TokenType.NORMAL if i in found else TokenType.UNUSED for i in range(size))
    return texts, list(map(int, kinds))


def _merges(model: Part) -> list[tuple[str, str]]:
    """Pairs, given as such or, in older versions, as one text with a space between."""
    pairs = (m.split(" ") if isinstance(m, str) else m for m in model["merges"])
    return [(first, second) for first, second in pairs]


def _parts(path: Path, part: Any, name: str) -> list[Part]:
    """The steps of a normalizer or pre-tokenizer, in order."""
    match part:
        case None:
            return []
        case {"type": "Sequence"}:
            return [step for inner in part[name] for step in _parts(path, inner, name)]
        case {"type": str()}:
            return [part]
    raise CheckpointError(f"{path}: {part!r} is none of {name} by type")
