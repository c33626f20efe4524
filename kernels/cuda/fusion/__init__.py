"""Fused kernels: one launch for the work of several, with the same bits."""
