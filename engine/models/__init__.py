"""Model families: one short file each, which reads like its paper.

The room, in reading order:

- `family`: what a family is to the engine
- `network`: what a family builds: projections, norms, rope and attention over the cache
- `feed_forward`: the feed-forward network of a block, and `experts`, where it is a mixture of them
- `blocks`: the ways through the blocks to logits that families have in common
- `tensors`: tensors and constants that families have in common
- `llama`, `qwen`, `gemma`, `gemma4`, `post_norm`, `phi3`, `command_r`, `falcon`, `opt`, `neox`,
  `gpt2`, `gpt_oss`, `mamba`, `granite_hybrid`, `lfm2`, `qwen3next`, `deepseek2`: the families
- `mtp`: multi-token prediction blocks after a model's own
- `table`: every family there is
"""
