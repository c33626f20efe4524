"""From a file to a step: a graph is built, kernels are chosen and weights packed for it, and what
runs it is laid out in memory before the first token.

The room, in reading order:

- `build`: what a family builds, as the passes leave it
- `compiler`: kernels, weights, devices
- `packed_weights`: weights in the layouts that kernels stream
- `stages`, `arena`, `plan`: barriers, memory and argument buffers of what threads run
- `executable`: what all that run a step have in common
- `tune`: knobs of kernels, measured where they run
"""
