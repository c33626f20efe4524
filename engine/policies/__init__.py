"""KV cache policies: which cells are kept after prefill, or read by each decode token.

>>> Engine.load("model.gguf", kv_policy=SnapKV(capacity=1024))

Each is a file with a frozen dataclass and a function that appends the nodes that score a block's
cells to a graph; `table.py` lists them. Quest, which keeps all, has its pages in
engine/cache/pages.py, and DuoAttention, which selects by head, its rows in
engine/cache/streaming.py. NumPy references are in reference/cache/policies.py.
"""
