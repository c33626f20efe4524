"""What a GGUF file's keys say of its model.

- `keys`: a file's keys, read once and checked one by one
- `architectures`: what keys mean by architecture, where they are missing or mean another thing
- `config`: all of them as a ModelConfig
- `rope`, `experts`, `mixers`, `sizes`: how positions turn, which experts a token meets, which
  blocks attend and to what, and sizes that differ from block to block
- `unused`, `missing`: keys that no graph computes with, architectures that do not run
"""
