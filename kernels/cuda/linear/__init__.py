"""Products with a weight matrix."""
