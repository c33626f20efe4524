"""Ops that choose among the cells of a cache, and move what is kept."""
