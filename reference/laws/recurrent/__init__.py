"""Laws of the ops in reference/recurrent."""
