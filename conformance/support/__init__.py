"""Helpers of tests, one module per subject; tests never import one another."""
