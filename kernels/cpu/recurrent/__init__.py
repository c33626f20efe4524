"""Ops that carry a state from token to token."""
