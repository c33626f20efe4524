"""Attention over a KV cache: full, sparse by pattern, and over compressed pages."""
