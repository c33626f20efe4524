"""Masks of active neurons, and products with their rows only."""
