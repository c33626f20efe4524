"""Judging and measuring kernels on a GPU: the parts of bench/gpu_check.py."""
