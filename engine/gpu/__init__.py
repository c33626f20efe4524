"""A model on a GPU, whole or in its last blocks, the rest on the CPU's threads.

The room, in reading order:

- `parts`: which nodes run where, and the parts of a step that either side runs in a row
- `layout`: a GPU's parts with kernels, laid out in its memory before any is taken
- `memory`: what that memory has to hold, counted beforehand and put there
- `partition`: all this for a model
- `mirror`: a step's inputs, of which only what changed goes over
- `device_plan`: what a step has it do, recorded once where its sizes come again
- `greedy`: the most likely token found where the logits are
- `ahead`: a step that is begun before the token that it reads is known here
- `hybrid`: a step of parts on both sides, which have one interface
- `beside`: what is done between steps to the caches of blocks, on the side where they are
"""
