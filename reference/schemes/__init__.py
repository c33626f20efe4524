"""Integer and float quantisation schemes besides GGUF's blocks: groups of any size share a scale.

Per tensor, per channel (a row of a weight), per token (a row of activations) and per group are the
same op on an array reshaped to [groups, size]: `x.reshape(1, -1)`, `x`, or `x.reshape(-1, size)`.
"""
