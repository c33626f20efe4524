"""Kernels that are wrong on purpose: the judge must reject every one of them."""
