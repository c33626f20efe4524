"""Integer and float schemes beyond GGUF's blocks: groups of any size that share a scale.

By tensor, by channel (a row of a weight), by token (a row of activations) and by group is one op on
an array reshaped to [groups, size]: `x.reshape(1, -1)`, `x` itself, or `x.reshape(-1, size)`.
"""
