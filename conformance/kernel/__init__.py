"""Properties of single kernels."""
