"""Hugging Face checkpoints to GGUF files.

The room, in reading order:

- `checkpoint`: the folder, its JSON files and its tensors, some rows at a time
- `fields`: config.json's values, checked
- `family`: what a family says of its models: what fields mean, and what tensors are called
- `families`, `falcon`, `opt`, `experts`: the families, and in `table` which there are
- `predictors`: those of PowerInfer's sparse models
- `rope_scaling`: rotary frequencies that are stretched
- `vocabulary`: `tokens`, from `sentencepiece_model` or `tokenizer_json`, and `special` ones
- `conversion`: the parts put together

>>> convert(Path("TinyLlama-1.1B"), Path("tiny.gguf"), "F16").notes
[]
"""

from engine.convert.conversion import OUTTYPES, convert
from engine.convert.json_files import CheckpointError
from engine.convert.table import FAMILIES

__all__ = ["FAMILIES", "OUTTYPES", "CheckpointError", "convert"]
