"""Attention over the cells that a token sees: all of them, by pattern, or in two bits."""
