"""Which neurons are active, and products with their rows alone."""
