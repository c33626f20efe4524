"""Kernels that Assay judges and serves, from outside its repository."""
