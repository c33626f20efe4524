"""Sparse models: statistics, neuron placement, and sparse execution."""
