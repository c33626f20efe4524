"""Ops by other libraries: kernels are timed beside them, and a board ranks them."""
