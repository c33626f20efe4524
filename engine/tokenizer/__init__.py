"""Tokenizers: text to token ids and back, built from a GGUF file's metadata alone.

>>> tokenizer = Tokenizer.from_metadata(metadata)
>>> tokenizer.decode(tokenizer.encode("Hello world"))
'Hello world'

In reading order:

- `vocab`: the vocabulary, read from metadata and checked
- `special`: special tokens (BOS, EOS, <|eot_id|>), and splitting a text at them
- `pre_tokenizers`: splitting a text into words, by names
- `ends`: end-of-generation tokens, by their names
- `bpe`, `spm`: BPE models, thin wrappers of the libraries that define them
- `unigram` (with `charsmap`), `wordpiece`, `rwkv`, `plamo2`: models without merges; `matches` is
  their common token lookup
- `kinds`: the models by the names of `tokenizer.ggml.model`
- `tokenizer`: the tokenizer
- `stream`: incremental decoding
"""

from engine.tokenizer.stream import Detokenizer
from engine.tokenizer.tokenizer import Tokenizer
from engine.tokenizer.vocab import TokenizerError, TokenType

__all__ = ["Detokenizer", "TokenType", "Tokenizer", "TokenizerError"]
