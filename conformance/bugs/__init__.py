"""Planted bugs: kernels that are wrong on purpose, all of which the judge must reject."""
