"""Laws of the ops in reference/attention."""
