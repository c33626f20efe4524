"""Attention over the cache."""
