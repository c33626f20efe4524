"""Kernels for NVIDIA GPUs: one NAME.cu beside one NAME.py that says how it is launched."""
