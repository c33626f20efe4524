"""Laws of the ops in reference/sparse."""
