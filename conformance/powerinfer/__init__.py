"""Sparse models: statistics, placement, and what runs them."""
