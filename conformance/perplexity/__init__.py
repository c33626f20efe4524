"""Perplexity, scores and divergence of texts."""
