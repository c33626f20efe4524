"""An example of a package with kernels and an op for Assay."""
