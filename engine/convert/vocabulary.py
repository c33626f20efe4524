"""The tokenizer of a checkpoint as GGUF's keys: tokenizer.model, tokenizer.json or vocab.json."""

from pathlib import Path

from engine.convert import sentencepiece_model, tokenizer_json
from engine.convert.checkpoint import Checkpoint
from engine.convert.json_files import CheckpointError
from engine.convert.special import further_ends, special_keys, template_keys
from engine.convert.tokens import Added, added
from engine.gguf import writer as gw
from engine.tokenizer import Tokenizer, TokenizerError

PIECES, PARTS = "tokenizer.model", "tokenizer.json"
# Texts on which the file's tokenizer must agree with the checkpoint's.
TEXTS = (
    "Hello world",
    " two  spaces,\ttab\nand\n\nlines \n ",
    "It's 1234567 o'clock -- isn't it?! WE'LL see.",
    "Straße, Ελλάδα, 日本語, עברית",
    "🦊👩‍🚀 x² \u00a0|",
    'if (a_b != {"k": [1.5, -2]}) {\r\n\treturn 100%;  // why\r\n}',
)


def vocabulary(checkpoint: Checkpoint, size: int) -> tuple[gw.Keys, list[str]]:
    """The keys of a vocabulary of `size` tokens for this engine's tokenizer, and notes on what
    could not be kept."""
    folder = checkpoint.folder
    path = _path(folder)
    room = sentencepiece_model if path.name == PIECES else tokenizer_json
    theirs = room.encoder(path)  # first: the library validates the file
    tokens = room.read(path)
    tokens.fit(size, _added(checkpoint, path), str(folder))
    keys = {**tokens.keys(), **special_keys(checkpoint, tokens)}
    try:
        ours = Tokenizer.from_metadata({key: value for key, (_, value) in keys.items()})
    except TokenizerError as error:
        raise CheckpointError(f"{folder}: its tokenizer cannot be used: {error}") from None
    if wrong := [text for text in TEXTS if _ids(ours, text) != theirs(text)]:
        tokens.notes.append(
            f"{len(wrong)} of {len(TEXTS)} texts are cut otherwise than by {path.name}:"
            f" {wrong[0]!r} into {_ids(ours, wrong[0])}, not {theirs(wrong[0])}"
        )
    rest = {**further_ends(checkpoint, tokens, ours), **template_keys(checkpoint)}
    return {**keys, **rest}, tokens.notes


def _path(folder: Path) -> Path:
    """The vocabulary's file; tokenizer.model is preferred for its scores, if it is
    SentencePiece's."""
    pieces, parts = folder / PIECES, folder / PARTS
    if pieces.exists() and sentencepiece_model.is_sentencepiece(pieces):
        return pieces
    if parts.exists():
        return parts
    older = folder / tokenizer_json.VOCAB
    if older.exists() and older.with_name(tokenizer_json.MERGES).exists():
        return older
    if pieces.exists():
        raise CheckpointError(f"{pieces}: not a SentencePiece model, and no {PARTS} is here")
    raise CheckpointError(
        f"{folder}: there is no tokenizer: want {PIECES}, {PARTS} or {tokenizer_json.VOCAB} with"
        f" {tokenizer_json.MERGES}"
    )


def _added(checkpoint: Checkpoint, path: Path) -> dict[int, Added]:
    """Tokens added to the vocabulary, from all files that list them."""
    listed = checkpoint.json("added_tokens.json").items()
    told = checkpoint.part("tokenizer_config.json", "added_tokens_decoder").items()
    entries = {
        "added_tokens.json": [{"id": i, "content": text} for text, i in listed],
        PARTS: checkpoint.json(PARTS).get("added_tokens"),
        "tokenizer_config.json": [
            {"id": int(i), **token}
            for i, token in told
            if i.isdecimal() and isinstance(token, dict)
        ],
    }
    if path.name == tokenizer_json.VOCAB:
        entries = {path.name: tokenizer_json.contents(path)["added_tokens"]} | entries
    found: dict[int, Added] = {}
    for name, its in entries.items():
        found |= added(its or [], checkpoint.folder / name)
    return found


def _ids(tokenizer: Tokenizer, text: str) -> list[int] | str:
    try:
        return tokenizer.encode(text, add_special=False)
    except TokenizerError as error:
        return str(error)
