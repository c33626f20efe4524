"""From a file to an executable step: builds the graph, chooses kernels, packs weights, and lays out
memory before the first token.

The room, in reading order:

- `build`: the family's graph after all passes
- `compiler`: kernels, weights, devices
- `packed_weights`: weights in the layouts that kernels stream
- `stages`, `arena`, `plan`: barriers, memory and argument blocks of the threads' program
- `executable`: the interface of whatever runs a step
- `tune`: kernels' knobs, measured in place
"""
