"""Kernels that are wrong on purpose: what the engine demands must stop every one of them."""
