"""Sampling: parameters, the chain of samplers, and its state between tokens."""
