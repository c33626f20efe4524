"""Text to token ids and back, built from a GGUF file's metadata and from nothing else.

>>> tokenizer = Tokenizer.from_metadata(metadata)
>>> tokenizer.decode(tokenizer.encode("Hello world"))
'Hello world'

The room, in reading order:

- `vocab`: the metadata read and checked, once, into a `Vocab`
- `special`: the tokens that are not text (BOS, EOS, <|eot_id|>), and how a text is split at them
- `pre_tokenizers`: how a text is cut into words, by names
- `ends`: which tokens end a text, by their names
- `bpe`, `spm`: subword models that merge, thin fittings around the libraries that define them
- `unigram` (with `charsmap`), `wordpiece`, `rwkv`, `plamo2`: those that know no merges; `matches`
  is what they all ask
- `kinds`: the models by the names of `tokenizer.ggml.model`
- `tokenizer`: the parts put together
- `stream`: ids to text while they are still arriving
"""

from engine.tokenizer.stream import Detokenizer
from engine.tokenizer.tokenizer import Tokenizer
from engine.tokenizer.vocab import TokenizerError, TokenType

__all__ = ["Detokenizer", "TokenType", "Tokenizer", "TokenizerError"]
