"""Policies: which cells of a cache are kept once a prompt has been read, or read by each token.

>>> Engine.load("model.gguf", kv_policy=SnapKV(capacity=1024))

Each is a file with a frozen dataclass and a function that appends what scores a block's cells to a
graph; `table.py` lists them. Quest, which keeps all, has its pages in engine/cache/pages.py, and
DuoAttention, by which heads do, theirs in engine/cache/streaming.py. What
they are in NumPy is in reference/cache/policies.py.
"""
