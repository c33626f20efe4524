"""What is done to the cells of a cache: written, scored, chosen, kept together, packed."""
