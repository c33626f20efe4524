"""Speculation in tests: draft models, targets, and exactness of distributions."""
