"""Hugging Face checkpoints to GGUF files.

The room, in reading order:

- `checkpoint`: the folder, its JSON files and its tensors, some rows at a time
- `fields`: config.json's values, checked
- `family`: the interface of a family: meanings of fields, and names of tensors
- `models`: the families, listed in `table`
- `predictors`: PowerInfer's predictors for sparse models
- `rope_scaling`: rope scaling
- `vocabulary`: `tokens`, from `sentencepiece_model` or `tokenizer_json`, and `special` ones
- `conversion`: all of this together

>>> convert(Path("TinyLlama-1.1B"), Path("tiny.gguf"), "F16").notes
[]
"""

from engine.convert.conversion import OUTTYPES, convert
from engine.convert.json_files import CheckpointError
from engine.convert.table import FAMILIES

__all__ = ["FAMILIES", "OUTTYPES", "CheckpointError", "convert"]
