"""Kernels and ops of other packages, and judging them from outside."""
