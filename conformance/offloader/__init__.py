"""Sparse models whose neurons are read from disk."""
