"""Weights in fewer bits, and what they matter."""
