"""Attention over the KV cache."""
