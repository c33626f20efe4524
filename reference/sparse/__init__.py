"""Products over the neurons that are active, and who they are."""
