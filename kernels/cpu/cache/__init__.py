"""Ops on the KV cache: write, score, select, keep, and pack cells."""
