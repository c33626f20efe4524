"""Kernels that are not ours, from a file: loaded in a child that may do little, and judged."""
