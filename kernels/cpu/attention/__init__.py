"""Attention over the cache: its variants, and the parts that they are made of."""
