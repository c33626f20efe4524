"""Attention over the KV cache: variants and common parts."""
