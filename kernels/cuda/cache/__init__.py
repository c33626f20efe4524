"""Ops that select cells of a cache, and move the kept ones."""
