"""Kernels and ops of other packages, and what judges them from outside."""
