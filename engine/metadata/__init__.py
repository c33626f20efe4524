"""A GGUF file's metadata as a model's configuration.

- `keys`: a file's keys, read once and checked one by one
- `architectures`: defaults and meanings of keys by architecture
- `config`: all of them as a ModelConfig
- `rope`, `experts`, `mixers`, `sizes`: rotation of positions, routing of experts, kinds of blocks
  and what they attend to, and sizes that differ from block to block
- `unused`, `missing`: keys that no graph computes with, architectures that do not run
"""
