"""The tokenizer of a checkpoint as GGUF's keys, from tokenizer.model or from tokenizer.json."""

from engine import gguf_writer as gw
from engine.convert import sentencepiece_model, tokenizer_json
from engine.convert.checkpoint import Checkpoint, CheckpointError
from engine.convert.special import further_ends, special_keys, template_keys
from engine.convert.tokens import Added, Tokens
from engine.tokenizer import Tokenizer, TokenizerError

PIECES, PARTS = "tokenizer.model", "tokenizer.json"


def vocabulary(checkpoint: Checkpoint, size: int) -> tuple[gw.Keys, list[str]]:
    """The keys of a vocabulary of `size` tokens, as this engine's tokenizer takes them, and notes:
    what could not be kept."""
    folder = checkpoint.folder
    tokens = _tokens(checkpoint)
    tokens.add(_added(checkpoint), str(folder))
    tokens.cut(size, str(folder))
    keys = {**tokens.keys(), **special_keys(checkpoint, tokens)}
    try:
        tokenizer = Tokenizer.from_metadata({key: value for key, (_, value) in keys.items()})
    except TokenizerError as error:
        raise CheckpointError(f"{folder}: its tokenizer cannot be used: {error}") from None
    rest = {**further_ends(checkpoint, tokens, tokenizer), **template_keys(checkpoint)}
    return {**keys, **rest}, tokens.notes


def _tokens(checkpoint: Checkpoint) -> Tokens:
    """The vocabulary proper; tokenizer.model is preferred, since its scores are the model's."""
    pieces, parts = checkpoint.folder / PIECES, checkpoint.folder / PARTS
    if pieces.exists() and sentencepiece_model.is_sentencepiece(pieces):
        return sentencepiece_model.read(pieces)
    if parts.exists():
        return tokenizer_json.read(parts)
    if pieces.exists():
        raise CheckpointError(
            f"{pieces}: this is not a SentencePiece model, and no {PARTS} is here"
        )
    raise CheckpointError(f"{checkpoint.folder}: there is no tokenizer: want {PIECES} or {PARTS}")


def _added(checkpoint: Checkpoint) -> dict[int, Added]:
    """Tokens that were added to the vocabulary, from all files that tell of them."""
    path = checkpoint.folder / "added_tokens.json"
    listed = checkpoint.json(path.name).items()
    added = {i: Added(i, text, special=False) for text, i in listed if isinstance(i, int)}
    added |= tokenizer_json.added_tokens(checkpoint.folder / PARTS)
    config = checkpoint.json("tokenizer_config.json").get("added_tokens_decoder") or {}
    try:
        told = [Added(int(i), t["content"], t.get("special", False)) for i, t in config.items()]
    except (KeyError, TypeError, ValueError, AttributeError):
        path = checkpoint.folder / "tokenizer_config.json"
        raise CheckpointError(f"{path}: added_tokens_decoder is not tokens by id") from None
    return added | {token.id: token for token in told}
