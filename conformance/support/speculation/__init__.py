"""Speculation in tests: drafters, targets, and what is exact about them."""
