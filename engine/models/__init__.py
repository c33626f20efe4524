"""Model families: one short file each, which reads like its paper.

The room, in reading order:

- `family`: what a family is to the engine
- `layers`: what families have in common: inputs of a step, projections, attention over the cache
- `feed_forward`: the feed-forward network of a block
- `blocks`: the way through the blocks to logits that most families have in common
- `llama`, `qwen`, `gemma`, `gemma4`, `post_norm`, `phi3`, `command_r`, `falcon`, `opt`, `neox`,
  `gpt2`, `gpt_oss`, `mamba`, `lfm2`, `qwen3next`, `deepseek2`: the families
- `table`: every family there is
"""
