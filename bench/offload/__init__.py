"""Benchmarks of models larger than their memory budget: speed, and what limits it."""
