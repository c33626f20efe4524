"""The KV cache: cells and sequences, cached texts, cache methods, sessions on disk."""
