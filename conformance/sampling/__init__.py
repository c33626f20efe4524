"""Sampling: from logits to a token."""
