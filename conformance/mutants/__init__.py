"""Small changes of the kernels' sources that their trials must notice."""
