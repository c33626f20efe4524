"""Kernels that do at once what others do one after the other, with the same bits."""
