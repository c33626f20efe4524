"""Laws of the ops in reference/cache."""
