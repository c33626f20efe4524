"""Runs a model on a GPU, entirely or its last blocks, with the rest on the CPU's threads.

The room, in reading order:

- `parts`: assignment of nodes to devices, and the consecutive parts of a step
- `layout`: a GPU's parts with kernels and their memory layout, before any allocation
- `memory`: the GPU memory's contents: counted, then uploaded
- `partition`: all of this for a model
- `mirror`: a step's inputs, of which only changes are sent
- `device_plan`: a step's launches, captured as a graph for recurring sizes
- `greedy`: greedy decoding on the device
- `launched_step`: a step launched before the host knows its token
- `hybrid`: a step with parts on both sides, which share one interface
- `between_steps`: graphs that run between steps on blocks' caches, on the device of each
"""
