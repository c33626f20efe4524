"""Recurrent ops, which carry a state from token to token."""
