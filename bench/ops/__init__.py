"""Benchmarks of ops at models' sizes: cases, inputs, and kernels ready to be timed."""
