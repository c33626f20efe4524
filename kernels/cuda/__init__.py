"""Kernels for NVIDIA GPUs: sources, and modules that say how their functions are launched."""
